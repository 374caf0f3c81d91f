package backend

// Wrapper is what the Backend of a decorator embeds: it passes everything on to the
// Backend within, and gives that to those who ask for it ([As]).
type Wrapper struct{ Backend }

// Unwrap is the Backend within.
func (w Wrapper) Unwrap() Backend { return w.Backend }

// As finds the outermost Backend in a stack of decorators that is a T, b itself
// included, as [errors.As] finds an error. It is how a loop asks for more than a
// Backend promises: [Simulated], [Recorder]. A decorator that has no Unwrap method
// hides what is behind it.
func As[T any](b Backend) (T, bool) {
	for b != nil {
		if t, ok := b.(T); ok {
			return t, true
		}
		w, ok := b.(interface{ Unwrap() Backend })
		if !ok {
			break
		}
		b = w.Unwrap()
	}
	var none T
	return none, false
}
