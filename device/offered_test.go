package device

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// featureNames are virtio's, by bit (virtio 1.3, 5.2.3 and 6).
var featureNames = map[int]string{
	0: "BARRIER", 1: "SIZE_MAX", 2: "SEG_MAX", 4: "GEOMETRY", 5: "RO", 6: "BLK_SIZE", 7: "SCSI", 9: "FLUSH", 10: "TOPOLOGY",
	11: "CONFIG_WCE", 12: "MQ", 13: "DISCARD", 14: "WRITE_ZEROES", 15: "LIFETIME", 16: "SECURE_ERASE", 17: "ZONED",
	24: "NOTIFY_ON_EMPTY", 26: "LOG_ALL", 27: "ANY_LAYOUT", 28: "INDIRECT_DESC", 29: "EVENT_IDX", 30: "PROTOCOL_FEATURES",
	32: "VERSION_1", 33: "ACCESS_PLATFORM", 34: "RING_PACKED", 35: "IN_ORDER", 36: "ORDER_PLATFORM", 37: "SR_IOV",
	38: "NOTIFICATION_DATA", 39: "NOTIF_CONFIG_DATA", 40: "RING_RESET", 41: "ADMIN_VQ",
}

// typeNames are those of requests (virtio 1.3, 5.2.6, and legacy ones).
var typeNames = map[uint32]string{
	0: "IN", 1: "OUT", 2: "SCSI_CMD", 3: "SCSI_CMD_OUT", 4: "FLUSH", 5: "FLUSH_OUT", 8: "GET_ID", 10: "GET_LIFETIME",
	11: "DISCARD", 13: "WRITE_ZEROES", 14: "SECURE_ERASE", 15: "ZONE_APPEND", 16: "ZONE_REPORT", 18: "ZONE_OPEN",
	20: "ZONE_CLOSE", 22: "ZONE_FINISH", 24: "ZONE_RESET", 26: "ZONE_RESET_ALL", 1 << 31: "BARRIER",
}

// TestOffered holds what a driver can find: a feature bit or a request type that appears
// or vanishes changes the transcript. Commands:
//
//	features [read-only] [size-max] [plain]
//	requests [read-only] [plain]    types that are answered otherwise than UNSUPP
//
// A plain image neither discards nor writes zeroes.
//
// Messages of the protocol and its features stand in vhost/testdata/offered.
func TestOffered(t *testing.T) {
	datadriven.RunTest(t, "testdata/offered", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		r := newRig(t, none(), func(o *Options) {
			o.ReadOnly = d.HasArg("read-only")
			if d.HasArg("size-max") {
				o.SizeMax = 4096
			}
			if d.HasArg("plain") {
				o.Info = backend.Info{Sectors: o.Info.Sectors}
			}
		})
		switch d.Cmd {
		case "features":
			for bit := range 64 {
				if r.dev.Features()&(1<<bit) != 0 {
					require.Contains(t, featureNames, bit, "a bit without a name")
					fmt.Fprintf(&out, "%d %s\n", bit, featureNames[bit])
				}
			}
		case "requests":
			r.start()
			for _, typ := range append(upTo(1024), 1<<16, 1<<31, 1<<31|1, 1<<31|4, 1<<32-1) {
				_, status := r.request(typ, 0, 0)
				r.kick()
				r.step()
				r.reap(1)
				if blk.Status(status[0]) != blk.StatusUnsupp {
					require.Contains(t, typeNames, typ, "a type without a name")
					fmt.Fprintf(&out, "%d %s\n", typ, typeNames[typ])
				}
			}
			_, stopped := r.stop()
			require.True(t, stopped)
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		return out.String()
	})
}

func upTo(n uint32) (all []uint32) {
	for i := range n {
		all = append(all, i)
	}
	return all
}
