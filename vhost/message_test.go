package vhost

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/sys/shm"
)

// TestWire holds the codecs against bytes written down by hand from the document.
func TestWire(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"header", Message{ID: MsgSetVringNum, Flags: Version | FlagNeedReply, Payload: VringState{1, 0x100}.bytes()}.AppendTo(nil),
			"08000000 09000000 08000000 01000000 00010000"},
		{"u64", putU64(0x0123456789abcdef), "efcdab8967452301"},
		{"address", VringAddr{1, 2, 0x10, 0x20, 0x30, 0x40}.bytes(),
			"01000000 02000000 1000000000000000 2000000000000000 3000000000000000 4000000000000000"},
		{"table", tableBytes([]shm.Region{{GPA: 1, Size: 2, UVA: 3, Offset: 4}}),
			"01000000 00000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000"},
		{"single", singleBytes(shm.Region{GPA: 1, Size: 2, UVA: 3, Offset: 4}),
			"0000000000000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000"},
		{"config", configSpace{offset: 32, flags: 1, data: []byte{7}}.bytes(), "20000000 01000000 01000000 07"},
		{"inflight", Inflight{Size: 0x1080, Offset: 8, Queues: 2, QueueSize: 128}.bytes(20),
			"8010000000000000 0800000000000000 0200 8000"},
		{"inflight padded", Inflight{Queues: 2, QueueSize: 128}.bytes(24),
			"0000000000000000 0000000000000000 0200 8000 00000000"},
	} {
		want, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(c.want), []byte(" "), nil)))
		require.NoError(t, err)
		require.Equal(t, want, c.got, c.name)
	}
}

func TestHeader(t *testing.T) {
	head := func(id, flags, size uint32) (b [HeaderSize]byte) {
		binary.LittleEndian.PutUint32(b[0:], id)
		binary.LittleEndian.PutUint32(b[4:], flags)
		binary.LittleEndian.PutUint32(b[8:], size)
		return b
	}
	m, size, err := parseHeader(head(24, 9, 69))
	require.NoError(t, err)
	require.Equal(t, Message{ID: MsgGetConfig, Flags: 9}, m)
	require.Equal(t, 69, size)
	require.True(t, m.NeedReply())

	for _, bad := range [][3]uint32{
		{1, 0, 0}, {1, 2, 0}, {1, 3, 0}, // version
		{1, 1, MaxPayload + 1}, {1, 1, math.MaxInt32}, {1, 1, math.MaxUint32},
	} {
		_, _, err := parseHeader(head(bad[0], bad[1], bad[2]))
		require.ErrorIs(t, err, ErrMalformed, bad)
	}
}

func TestCheckRequest(t *testing.T) {
	for _, c := range []struct {
		id   ID
		good []int
		bad  []int
	}{
		{MsgSetOwner, []int{0}, []int{1, 8}},
		{MsgSetFeatures, []int{8}, []int{0, 7, 9, 16}},
		{MsgGetVringBase, []int{8}, []int{0, 4, 12}},
		{MsgSetVringAddr, []int{40}, []int{32, 39, 48}},
		{MsgSetMemTable, []int{8, 40, 8 + 9*32}, []int{0, 7, 41, 4096}},
		{MsgAddMemReg, []int{40}, []int{32, 48}},
		{MsgGetConfig, []int{12, 13, 268}, []int{0, 11}},
		{MsgGetInflightFD, []int{20, 24}, []int{0, 19, 21, 28}},
		{0x55, []int{0, 4096}, nil},
	} {
		for _, n := range c.good {
			require.NoError(t, checkRequest(Message{ID: c.id, Flags: Version}, n), "%v %d", c.id, n)
		}
		for _, n := range c.bad {
			require.ErrorIs(t, checkRequest(Message{ID: c.id, Flags: Version}, n), ErrMalformed, "%v %d", c.id, n)
		}
	}
	require.ErrorIs(t, checkRequest(Message{ID: MsgGetFeatures, Flags: Version | FlagReply}, 0), ErrMalformed)
}

func TestParseTable(t *testing.T) {
	table := []shm.Region{{GPA: 1, Size: 2, UVA: 3, Offset: 4}, {GPA: 5, Size: 6, UVA: 7, Offset: 8}}
	got, err := parseTable(tableBytes(table))
	require.NoError(t, err)
	require.Equal(t, table, got)

	got, err = parseTable(append(tableBytes(table), make([]byte, 6*regionSize)...))
	require.NoError(t, err, "eight regions always, as in the document's picture")
	require.Equal(t, table, got)

	for name, bad := range map[string][]byte{
		"more sent than announced": append(tableBytes(table), make([]byte, regionSize)...),
		"more announced than sent": append(putU64(9), make([]byte, 8*regionSize)...),
		"as many as there can be":  putU64(math.MaxUint32),
	} {
		_, err := parseTable(bad)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
}

// FuzzMessage: no bytes make a parser fail in another way than by an error, and
// what it understood is what was sent.
func FuzzMessage(f *testing.F) {
	f.Add(Message{ID: MsgSetMemTable, Flags: 1, Payload: tableBytes(make([]shm.Region, 2))}.AppendTo(nil))
	f.Add(Message{ID: MsgSetConfig, Flags: 9, Payload: configSpace{offset: 32, data: []byte{1}}.bytes()}.AppendTo(nil))
	f.Add(Message{ID: MsgGetInflightFD, Flags: 1, Payload: Inflight{Queues: 1}.bytes(24)}.AppendTo(nil))
	f.Add(Message{ID: MsgSetVringAddr, Flags: 1, Payload: VringAddr{Desc: 1}.bytes()}.AppendTo(nil))
	f.Add(Message{ID: MsgSetVringNum, Flags: 1, Payload: VringState{1, 2}.bytes()}.AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < HeaderSize {
			return
		}
		m, size, err := parseHeader([HeaderSize]byte(b))
		if err != nil || size != len(b)-HeaderSize || checkRequest(m, size) != nil {
			return
		}
		m.Payload = b[HeaderSize:]
		require.Equal(t, b, m.AppendTo(nil))
		switch m.ID {
		case MsgSetMemTable:
			if table, err := parseTable(m.Payload); err == nil {
				again, err := parseTable(tableBytes(table))
				require.NoError(t, err)
				require.Equal(t, table, again)
			}
		case MsgGetConfig, MsgSetConfig:
			if c, err := parseConfig(m.Payload); err == nil {
				require.Equal(t, m.Payload, c.bytes())
			}
		case MsgGetInflightFD, MsgSetInflightFD:
			require.Equal(t, m.Payload[:inflightSize], parseInflight(m.Payload).bytes(inflightSize))
		case MsgSetVringAddr:
			require.Equal(t, m.Payload, parseAddr(m.Payload).bytes())
		case MsgSetVringNum, MsgSetVringBase, MsgGetVringBase, MsgSetVringEnable:
			require.Equal(t, m.Payload, parseState(m.Payload).bytes())
		case MsgAddMemReg, MsgRemMemReg:
			require.Equal(t, m.Payload[8:], singleBytes(parseSingle(m.Payload))[8:])
		}
	})
}
