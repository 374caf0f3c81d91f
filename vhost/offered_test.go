package vhost

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// protocolNames are the document's, by bit.
var protocolNames = []string{
	"MQ", "LOG_SHMFD", "RARP", "REPLY_ACK", "MTU", "BACKEND_REQ", "CROSS_ENDIAN", "CRYPTO_SESSION", "PAGEFAULT", "CONFIG",
	"BACKEND_SEND_FD", "HOST_NOTIFIER", "INFLIGHT_SHMFD", "RESET_DEVICE", "INBAND_NOTIFICATIONS", "CONFIGURE_MEM_SLOTS", "STATUS",
	"XEN_MMAP", "SHARED_OBJECT", "DEVICE_STATE", "GET_VRING_BASE_INFLIGHT", "GPA_ADDRESSES", "SHMEM_MAP",
}

// TestOffered holds what a front-end can find, by asking a session: a protocol feature
// or a message that appears or vanishes changes the transcript. Commands:
//
//	features            virtio features that the protocol adds to the device's
//	protocol-features
//	messages            what becomes of each message, by number
//	backend-messages    our own
//
// What a device offers stands in device/testdata/offered.
func TestOffered(t *testing.T) {
	datadriven.RunTest(t, "testdata/offered", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		switch d.Cmd {
		case "features":
			for _, bit := range bits(get(t, MsgGetFeatures) &^ fakeFeatures) {
				require.EqualValues(t, FeatureProtocolFeatures, 1<<bit)
				fmt.Fprintf(&out, "%d PROTOCOL_FEATURES\n", bit)
			}
		case "protocol-features":
			for _, bit := range bits(get(t, MsgGetProtocolFeatures)) {
				require.Less(t, bit, len(protocolNames), "a bit that the document does not have")
				fmt.Fprintf(&out, "%d %s\n", bit, protocolNames[bit])
			}
		case "messages":
			const end = 44 // of the document's
			for id := range ID(end) {
				fmt.Fprintf(&out, "%d %v: %s\n", id, id, fate(t, id))
			}
			for _, id := range []ID{end, 45, 46, 47, 48, 63, 64, 100, 255, 1 << 16, 1<<32 - 1} {
				require.Equal(t, "refused", fate(t, id), "message %d", id)
			}
		case "backend-messages":
			fmt.Fprintf(&out, "%d CONFIG_CHANGE_MSG\n", MsgConfigChange)
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		return out.String()
	})
}

// get is what a new session answers to id.
func get(t *testing.T, id ID) uint64 {
	dev := newFake(1)
	s := NewSession(dev, dev, zap.NewNop(), nil)
	defer s.Close(nil)
	reply, err := s.Handle(Message{ID: id, Flags: Version}, nil)
	require.NoError(t, err)
	return getU64(reply.Message.Payload)
}

// bits are the numbers of those that are set.
func bits(v uint64) (set []int) {
	for bit := range 64 {
		if v&(1<<bit) != 0 {
			set = append(set, bit)
		}
	}
	return set
}

// fate is what a session does with a message of that number, whatever its payload says:
// it is known unless the session says that it is not.
func fate(t *testing.T, id ID) string {
	core, logs := observer.New(zapcore.WarnLevel)
	dev := newFake(1)
	defer dev.close()
	s := NewSession(dev, dev, zap.New(core), nil)
	defer s.Close(nil)
	low, _, _ := payloadRange(id)
	_, err := s.Handle(Message{ID: id, Flags: Version, Payload: make([]byte, low)}, nil)
	unknown := fmt.Sprintf("%v is not supported", id)
	switch {
	case err != nil && strings.Contains(err.Error(), unknown):
		require.True(t, errors.Is(err, ErrNoAnswer), "%v", err)
		return "ends the session"
	case logs.Len() == 1 && logs.All()[0].ContextMap()["error"] == unknown:
		return "refused"
	}
	return "known"
}
