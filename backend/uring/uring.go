// Package uring is the io_uring ring and nothing else: set-up, submission,
// completion, registered files. It knows no disk and no guest.
package uring

// Ring is one io_uring instance.
type Ring struct{}
