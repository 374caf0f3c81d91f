package attach

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/elevisor/elevisor/vhost"
)

// serverTime bounds what a server may take to accept and to answer.
const serverTime = 3 * time.Second

// ask connects to the server as a front-end would, and returns how many queues it has;
// timeout is for each answer.
// It is asked before QEMU is: QEMU waits for the answers with the whole VM stopped, and
// a server that serves another VM, or is none, never gives them.
func ask(socket string, timeout time.Duration) (queues int, err error) {
	f, err := vhost.Dial(socket, timeout)
	if err != nil {
		return 0, fmt.Errorf("disk socket %s: %w; no server listens there (elevisor serve --socket-path=%s)", socket, err, socket)
	}
	defer f.Close()
	features, err := f.GetFeatures()
	switch late := net.Error(nil); {
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &late) && late.Timeout():
		return 0, fmt.Errorf("disk socket %s: it does not answer: another VM has this disk (a server takes one front-end at a time), or it is no vhost-user socket", socket)
	case err != nil:
		return 0, fmt.Errorf("disk socket %s: it is no vhost-user socket: %w", socket, err)
	case features&vhost.FeatureProtocolFeatures == 0:
		return 0, fmt.Errorf("disk socket %s: a vhost-user server without protocol features, which a disk needs", socket)
	}
	protocol, err := f.GetProtocolFeatures()
	if err != nil {
		return 0, fmt.Errorf("disk socket %s: %w", socket, err)
	}
	if protocol&vhost.ProtocolConfig == 0 {
		return 0, fmt.Errorf("disk socket %s: a vhost-user server, but not of a disk: it has no configuration space", socket)
	}
	if protocol&vhost.ProtocolMQ == 0 {
		return 1, nil
	}
	if err := f.SetProtocolFeatures(vhost.ProtocolConfig | vhost.ProtocolMQ); err != nil {
		return 0, fmt.Errorf("disk socket %s: %w", socket, err)
	}
	if queues, err = f.GetQueueNum(); err != nil {
		return 0, fmt.Errorf("disk socket %s: %w", socket, err)
	}
	return max(1, queues), nil
}
