package qmp

import (
	"cmp"
	"context"
	"time"

	goqemu "github.com/digitalocean/go-qemu/qmp"
)

const (
	// statusTime bounds the question for the run state.
	statusTime = 5 * time.Second
	// defaultPause is longer than a snapshot, or the end of a migration, mostly takes.
	defaultPause = 5 * time.Second
)

// Events of QEMU that end a wait for its guest. [WatchOptions] may expect the first two.
const (
	EventStop     = "STOP"
	EventReset    = "RESET"
	eventSuspend  = "SUSPEND"
	eventShutdown = "SHUTDOWN"
	eventPanicked = "GUEST_PANICKED"
)

// running is the run state in which a guest makes progress.
const running = "running"

// passing are the run states that a guest may leave again: QEMU by itself, or whoever has
// paused it. The other ones are final.
var passing = map[string]bool{
	"colo": true, "debug": true, "finish-migrate": true, "inmigrate": true, "paused": true,
	"prelaunch": true, "restore-vm": true, "save-vm": true, "suspended": true,
}

// StopError says why it is no use to wait for a guest any longer.
type StopError struct {
	Event  string // QEMU's; empty: the guest was found stopped
	Status string // the run state of query-status: internal-error, paused, …; empty: QEMU has not told it
	Reason string // of SHUTDOWN and RESET: guest-shutdown, guest-reset, …
}

func (e *StopError) Error() string {
	switch {
	case e.Event == eventPanicked:
		return "the guest's kernel has panicked"
	case e.Event == eventShutdown:
		return "the guest has shut down (" + e.Reason + ")"
	case e.Event == EventReset:
		return "the guest has been reset (" + e.Reason + ")"
	case e.Status == "":
		return "the guest has stopped"
	}
	return "the guest has stopped: QEMU's run state is " + e.Status
}

// WatchOptions say what does not end a watch.
type WatchOptions struct {
	// Expected says whether a STOP or a RESET is no surprise; nil: it always is one. A
	// goroutine of the watch calls it.
	Expected func(event string) bool
	// MaxPause is how long the guest may be paused by somebody else: a snapshot and the end
	// of a migration pause it for a moment. 0: 5 s.
	MaxPause time.Duration
}

// Watch returns a context for what waits for the guest. It ends with ctx, and before that
// as soon as the guest will not answer any more: when it is stopped, reset, shut down, has
// panicked, or the connection to QEMU ends. Its cause ([context.Cause]) is then a
// *[StopError] or the connection's error. The returned function ends the watch.
func (m *Monitor) Watch(ctx context.Context, o WatchOptions) (context.Context, context.CancelFunc) {
	if o.Expected == nil {
		o.Expected = func(string) bool { return false }
	}
	ctx, end := context.WithCancelCause(ctx)
	w := &watch{WatchOptions: o, mon: m}
	w.MaxPause = cmp.Or(o.MaxPause, defaultPause)
	var err error
	if w.events, err = m.Events(ctx); err == nil {
		err = w.look(ctx, "") // what happened before there was a listener
	}
	if err != nil {
		end(err)
		return ctx, func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end(w.run(ctx))
		w.unpause()
	}()
	return ctx, func() {
		end(context.Canceled)
		<-ended
	}
}

// watch is a watch under way; one goroutine has it.
type watch struct {
	WatchOptions
	mon      *Monitor
	events   <-chan goqemu.Event
	paused   context.Context // ends when a pause has lasted too long; nil: there is none
	unpaused context.CancelFunc
}

// run returns why the watch ends.
func (w *watch) run(ctx context.Context) error {
	for {
		var late <-chan struct{}
		if w.paused != nil {
			late = w.paused.Done()
		}
		var err error
		select {
		case e := <-w.events:
			err = w.judge(ctx, e)
		case <-late:
			err = w.overdue(ctx)
		case <-w.mon.gone:
			return w.last(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// last returns what QEMU said before it closed the connection, or that it did.
func (w *watch) last(ctx context.Context) error {
	for {
		select {
		case e := <-w.events:
			if e.Event != EventStop && e.Event != eventSuspend { // nobody is left to ask for the state
				if err := w.judge(ctx, e); err != nil {
					return err
				}
			}
		default:
			return w.mon.Err()
		}
	}
}

// judge returns an error for an event after which the guest does not go on.
func (w *watch) judge(ctx context.Context, e goqemu.Event) error {
	reason, _ := e.Data["reason"].(string)
	switch e.Event {
	case EventStop, eventSuspend:
		if !w.Expected(EventStop) {
			return w.look(ctx, e.Event)
		}
	case EventReset:
		if !w.Expected(EventReset) {
			return &StopError{Event: e.Event, Reason: reason}
		}
	case eventShutdown, eventPanicked:
		return &StopError{Event: e.Event, Reason: reason}
	}
	return nil
}

// look asks for the run state. A guest that is paused has some time to go on.
func (w *watch) look(ctx context.Context, event string) error {
	status, err := w.status(ctx)
	switch {
	case w.mon.Err() != nil:
		return w.mon.Err()
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && event == "": // QEMU may be busy; an event would tell
		return nil
	case err == nil && status == running:
		return nil
	case err == nil && passing[status]:
		w.unpause()
		w.paused, w.unpaused = context.WithTimeout(ctx, w.MaxPause)
		return nil
	}
	return &StopError{Event: event, Status: status}
}

// overdue looks at a guest whose pause should be over.
func (w *watch) overdue(ctx context.Context) error {
	w.unpause()
	status, err := w.status(ctx)
	if ctx.Err() != nil || err == nil && status == running || w.Expected(EventStop) {
		return nil
	}
	return &StopError{Event: EventStop, Status: status}
}

func (w *watch) unpause() {
	if w.unpaused != nil {
		w.unpaused()
	}
	w.paused, w.unpaused = nil, nil
}

func (w *watch) status(ctx context.Context) (string, error) {
	ctx, stop := context.WithTimeout(ctx, statusTime)
	defer stop()
	var s struct{ Status string }
	err := w.mon.Execute(ctx, "query-status", nil, &s)
	return s.Status, err
}
