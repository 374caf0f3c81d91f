package vhost

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/elevisor/elevisor/sys/shm"
)

// ID is a request's number ("Front-end message types" in the document).
type ID uint32

// The messages of front-ends that this package carries out. All others are refused.
const (
	MsgGetFeatures         ID = 1
	MsgSetFeatures         ID = 2
	MsgSetOwner            ID = 3
	MsgResetOwner          ID = 4
	MsgSetMemTable         ID = 5
	MsgSetVringNum         ID = 8
	MsgSetVringAddr        ID = 9
	MsgSetVringBase        ID = 10
	MsgGetVringBase        ID = 11
	MsgSetVringKick        ID = 12
	MsgSetVringCall        ID = 13
	MsgSetVringErr         ID = 14
	MsgGetProtocolFeatures ID = 15
	MsgSetProtocolFeatures ID = 16
	MsgGetQueueNum         ID = 17
	MsgSetVringEnable      ID = 18
	MsgSetBackendReqFD     ID = 21
	MsgGetConfig           ID = 24
	MsgSetConfig           ID = 25
	MsgGetInflightFD       ID = 31
	MsgSetInflightFD       ID = 32
	MsgResetDevice         ID = 34
	MsgGetMaxMemSlots      ID = 36
	MsgAddMemReg           ID = 37
	MsgRemMemReg           ID = 38
)

// MsgConfigChange is the back-end's message on the channel of
// SET_BACKEND_REQ_FD; its numbers are a space of their own.
const MsgConfigChange ID = 2

var idNames = map[ID]string{
	MsgGetFeatures: "GET_FEATURES", MsgSetFeatures: "SET_FEATURES",
	MsgSetOwner: "SET_OWNER", MsgResetOwner: "RESET_OWNER",
	MsgSetMemTable: "SET_MEM_TABLE", 6: "SET_LOG_BASE", 7: "SET_LOG_FD",
	MsgSetVringNum: "SET_VRING_NUM", MsgSetVringAddr: "SET_VRING_ADDR",
	MsgSetVringBase: "SET_VRING_BASE", MsgGetVringBase: "GET_VRING_BASE",
	MsgSetVringKick: "SET_VRING_KICK", MsgSetVringCall: "SET_VRING_CALL", MsgSetVringErr: "SET_VRING_ERR",
	MsgGetProtocolFeatures: "GET_PROTOCOL_FEATURES", MsgSetProtocolFeatures: "SET_PROTOCOL_FEATURES",
	MsgGetQueueNum: "GET_QUEUE_NUM", MsgSetVringEnable: "SET_VRING_ENABLE",
	19: "SEND_RARP", 20: "NET_SET_MTU", MsgSetBackendReqFD: "SET_BACKEND_REQ_FD",
	22: "IOTLB_MSG", 23: "SET_VRING_ENDIAN", MsgGetConfig: "GET_CONFIG", MsgSetConfig: "SET_CONFIG",
	26: "CREATE_CRYPTO_SESSION", 27: "CLOSE_CRYPTO_SESSION", 28: "POSTCOPY_ADVISE", 29: "POSTCOPY_LISTEN",
	30: "POSTCOPY_END", MsgGetInflightFD: "GET_INFLIGHT_FD", MsgSetInflightFD: "SET_INFLIGHT_FD",
	33: "GPU_SET_SOCKET", MsgResetDevice: "RESET_DEVICE", 35: "VRING_KICK",
	MsgGetMaxMemSlots: "GET_MAX_MEM_SLOTS", MsgAddMemReg: "ADD_MEM_REG", MsgRemMemReg: "REM_MEM_REG",
	39: "SET_STATUS", 40: "GET_STATUS", 41: "GET_SHARED_OBJECT",
	42: "SET_DEVICE_STATE_FD", 43: "CHECK_DEVICE_STATE",
}

func (id ID) String() string {
	if s, ok := idNames[id]; ok {
		return s
	}
	return fmt.Sprintf("message %d", uint32(id))
}

// FeatureProtocolFeatures is the feature bit that stands for GET_ and
// SET_PROTOCOL_FEATURES. It belongs to the protocol; no device offers it.
const FeatureProtocolFeatures = 1 << 30

// Protocol feature bits.
const (
	ProtocolMQ                = 1 << 0
	ProtocolReplyAck          = 1 << 3
	ProtocolBackendReq        = 1 << 5
	ProtocolConfig            = 1 << 9
	ProtocolInflightShmFD     = 1 << 12
	ProtocolResetDevice       = 1 << 13
	ProtocolConfigureMemSlots = 1 << 15
)

// OfferedProtocol are the protocol features that a session offers: those that are
// implemented, and no other, since QEMU acknowledges every bit that it knows.
const OfferedProtocol = ProtocolMQ | ProtocolReplyAck | ProtocolBackendReq | ProtocolConfig |
	ProtocolInflightShmFD | ProtocolResetDevice | ProtocolConfigureMemSlots

// Header flags: the version in the lower two bits, and two marks.
const (
	Version       = 1
	FlagReply     = 1 << 2
	FlagNeedReply = 1 << 3

	versionMask = 3
)

// Limits. The document sets MaxFDs and MaxRegions (of SET_MEM_TABLE) and the 256
// bytes of configuration space; the others are our own.
const (
	HeaderSize  = 12
	MaxPayload  = 4096 // bytes; the longest message of the document has less
	MaxFDs      = 8    // descriptors with one message
	MaxRegions  = 8    // regions in one SET_MEM_TABLE
	MaxMemSlots = 509  // answer to GET_MAX_MEM_SLOTS, the kernel's own vhost limit

	// MaxMemory is how many bytes of memory one front-end may share. The front-ends of a
	// process share its address space, 2^47 bytes on most machines, and one could use
	// up all of it with a sparse file.
	MaxMemory = 16 << 40
	MaxConfig = 256 // bytes of configuration space
)

// Sizes of payloads, in bytes.
const (
	u64Size      = 8
	stateSize    = 8
	addrSize     = 40
	regionSize   = 32
	tableHead    = 8
	singleSize   = 8 + regionSize
	configHead   = 12
	inflightSize = 20 // and 4 of padding from front-ends whose compiler pads
)

// Message is one message in either direction. Its file descriptors are passed
// separately, because they have an owner.
type Message struct {
	ID      ID
	Flags   uint32
	Payload []byte
}

// NeedReply is whether the sender asks for an acknowledgement.
func (m Message) NeedReply() bool { return m.Flags&FlagNeedReply != 0 }

// AppendTo encodes m behind b.
func (m Message) AppendTo(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(m.ID))
	b = binary.LittleEndian.AppendUint32(b, m.Flags)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.Payload)))
	return append(b, m.Payload...)
}

// ErrMalformed is a message whose header or length is wrong. The stream cannot be
// trusted after it, so the connection ends.
var ErrMalformed = errors.New("malformed message")

// parseHeader returns the message whose header is b, without its payload, and the
// payload's length.
func parseHeader(b [HeaderSize]byte) (Message, int, error) {
	m := Message{
		ID:    ID(binary.LittleEndian.Uint32(b[0:])),
		Flags: binary.LittleEndian.Uint32(b[4:]),
	}
	size := binary.LittleEndian.Uint32(b[8:])
	if v := m.Flags & versionMask; v != Version {
		return m, 0, fmt.Errorf("%v: version %d, want %d: %w", m.ID, v, Version, ErrMalformed)
	}
	if size > MaxPayload {
		return m, 0, fmt.Errorf("%v: payload of %d bytes, at most %d: %w", m.ID, size, MaxPayload, ErrMalformed)
	}
	return m, int(size), nil
}

// payloadRange returns how long a request's payload may be, and in which steps.
func payloadRange(id ID) (low, high, step int) {
	switch id {
	case MsgGetFeatures, MsgSetOwner, MsgResetOwner, MsgGetProtocolFeatures, MsgGetQueueNum,
		MsgSetBackendReqFD, MsgResetDevice, MsgGetMaxMemSlots:
		return 0, 0, 1
	case MsgSetFeatures, MsgSetProtocolFeatures, MsgSetVringKick, MsgSetVringCall, MsgSetVringErr:
		return u64Size, u64Size, 1
	case MsgSetVringNum, MsgSetVringBase, MsgGetVringBase, MsgSetVringEnable:
		return stateSize, stateSize, 1
	case MsgSetVringAddr:
		return addrSize, addrSize, 1
	case MsgSetMemTable:
		return tableHead, MaxPayload, regionSize
	case MsgAddMemReg, MsgRemMemReg:
		return singleSize, singleSize, 1
	case MsgGetConfig, MsgSetConfig:
		return configHead, MaxPayload, 1
	case MsgGetInflightFD, MsgSetInflightFD:
		return inflightSize, inflightSize + 4, 4
	}
	return 0, MaxPayload, 1
}

// checkRequest refuses a reply, and a request with a wrong length, before its payload is
// waited for.
func checkRequest(m Message, size int) error {
	if m.Flags&FlagReply != 0 {
		return fmt.Errorf("%v: a reply to nothing (flags %#x): %w", m.ID, m.Flags, ErrMalformed)
	}
	low, high, step := payloadRange(m.ID)
	if size < low || size > high || (size-low)%step != 0 {
		return fmt.Errorf("%v: payload of %d bytes, want %d to %d in steps of %d: %w", m.ID, size, low, high, step, ErrMalformed)
	}
	return nil
}

// Payloads. The document says machine byte order; rings in shared memory need a
// little-endian machine anyway (sys/shm). The parse functions take payloads whose length
// was checked.

func getU64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

func putU64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// VringState is "A vring state description": of GET_VRING_BASE, SET_VRING_NUM,
// _BASE and _ENABLE.
type VringState struct {
	Index uint32
	Num   uint32
}

func parseState(b []byte) VringState {
	return VringState{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])}
}

func (s VringState) bytes() []byte {
	b := binary.LittleEndian.AppendUint32(nil, s.Index)
	return binary.LittleEndian.AppendUint32(b, s.Num)
}

// VringAddr is "A vring address description": where a ring's three parts lie in
// the front-end's address space.
type VringAddr struct {
	Index uint32
	Flags uint32 // bit 0: log writes to the used ring
	Desc  uint64
	Used  uint64
	Avail uint64
	Log   uint64
}

func parseAddr(b []byte) VringAddr {
	return VringAddr{
		Index: binary.LittleEndian.Uint32(b[0:]), Flags: binary.LittleEndian.Uint32(b[4:]),
		Desc: getU64(b[8:]), Used: getU64(b[16:]), Avail: getU64(b[24:]), Log: getU64(b[32:]),
	}
}

func (a VringAddr) bytes() []byte {
	b := binary.LittleEndian.AppendUint32(nil, a.Index)
	b = binary.LittleEndian.AppendUint32(b, a.Flags)
	for _, v := range [...]uint64{a.Desc, a.Used, a.Avail, a.Log} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func parseRegion(b []byte) shm.Region {
	return shm.Region{GPA: getU64(b[0:]), Size: getU64(b[8:]), UVA: getU64(b[16:]), Offset: getU64(b[24:])}
}

func appendRegion(b []byte, r shm.Region) []byte {
	for _, v := range [...]uint64{r.GPA, r.Size, r.UVA, r.Offset} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// parseTable is "Multiple Memory regions description". Front-ends send as many
// regions as they announce; in the document's picture there are always eight, which is
// accepted too.
func parseTable(b []byte) ([]shm.Region, error) {
	n, have := int64(binary.LittleEndian.Uint32(b)), int64(len(b)-tableHead)/regionSize
	if n != have && (n > MaxRegions || have != MaxRegions) {
		return nil, fmt.Errorf("%d regions announced, %d sent: %w", n, have, ErrMalformed)
	}
	t := make([]shm.Region, n)
	for i := range t {
		t[i] = parseRegion(b[tableHead+i*regionSize:])
	}
	return t, nil
}

func tableBytes(t []shm.Region) []byte {
	b := putU64(uint64(uint32(len(t)))) // 32 bits of count, 32 of padding
	for _, r := range t {
		b = appendRegion(b, r)
	}
	return b
}

// singleBytes is "Single memory region description".
func singleBytes(r shm.Region) []byte { return appendRegion(putU64(0), r) }

func parseSingle(b []byte) shm.Region { return parseRegion(b[8:]) }

// configSpace is "Virtio device config space"; data is as long as size said.
type configSpace struct {
	offset uint32
	flags  uint32
	data   []byte
}

func parseConfig(b []byte) (configSpace, error) {
	c := configSpace{
		offset: binary.LittleEndian.Uint32(b[0:]),
		flags:  binary.LittleEndian.Uint32(b[8:]),
		data:   b[configHead:],
	}
	if size := binary.LittleEndian.Uint32(b[4:]); int64(size) != int64(len(c.data)) {
		return c, fmt.Errorf("%d bytes of configuration announced, %d sent: %w", size, len(c.data), ErrMalformed)
	}
	return c, nil
}

func (c configSpace) bytes() []byte {
	b := binary.LittleEndian.AppendUint32(nil, c.offset)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(c.data)))
	b = binary.LittleEndian.AppendUint32(b, c.flags)
	return append(b, c.data...)
}

// Inflight is "Inflight description".
type Inflight struct {
	Size      uint64 // of the area, bytes; 0 in a reply: there is none
	Offset    uint64 // of the area in its file
	Queues    uint16
	QueueSize uint16
}

func parseInflight(b []byte) Inflight {
	return Inflight{
		Size: getU64(b[0:]), Offset: getU64(b[8:]),
		Queues: binary.LittleEndian.Uint16(b[16:]), QueueSize: binary.LittleEndian.Uint16(b[18:]),
	}
}

// bytes is i in a payload of n bytes, with or without padding.
func (i Inflight) bytes(n int) []byte {
	b := make([]byte, n)
	binary.LittleEndian.PutUint64(b[0:], i.Size)
	binary.LittleEndian.PutUint64(b[8:], i.Offset)
	binary.LittleEndian.PutUint16(b[16:], i.Queues)
	binary.LittleEndian.PutUint16(b[18:], i.QueueSize)
	return b
}

// Bits of the payload of SET_VRING_KICK, _CALL and _ERR.
const (
	vringIndexMask = 0xff
	vringNoFD      = 1 << 8
)
