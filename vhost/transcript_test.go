package vhost

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/sys/shm"
)

// TestTranscripts plays the files of testdata. Commands:
//
//	session [queues=N]   a new session over the same device (queues: a new device);
//	                     one that is there is closed first
//	send                 messages, one a line
//	fail WHAT|nothing    lets the device fail: memory, inflight, start
//	change               the configuration space changes
//	close                closes the session
//
// A message is NAME (or message=ID) or NAME! (need_reply), then its fields, then
// fd=WHAT once for each descriptor. Output: the message, its reply, the log's lines, and below what
// the device was asked. At the end of a file nothing may be left open.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		leakCheck(t)
		p := &player{t: t, files: map[string]int{}}
		defer p.end()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			p.t = t
			return p.command(d)
		})
	})
}

type player struct {
	t       testing.TB
	dev     *fake
	session *Session
	out     strings.Builder
	files   map[string]int // memory files by name
	channel *Frontend      // our end of the back-end channel
}

func (p *player) command(d *datadriven.TestData) string {
	p.out.Reset()
	switch d.Cmd {
	case "session":
		p.closeSession()
		if d.HasArg("queues") {
			var n int
			d.ScanArgs(p.t, "queues", &n)
			if p.dev != nil {
				p.dev.close()
			}
			p.dev = newFake(n)
		}
		p.session = NewSession(p.dev, p.dev, p.logger(), nil)
	case "send":
		for line := range strings.Lines(d.Input) {
			p.send(strings.TrimSpace(line))
		}
	case "fail":
		p.dev.failMemory, p.dev.failInflight, p.dev.failStart = d.HasArg("memory"), d.HasArg("inflight"), d.HasArg("start")
	case "change":
		p.session.ConfigChanged()
		p.fromChannel()
	case "close":
		p.closeSession()
	default:
		d.Fatalf(p.t, "unknown command %s", d.Cmd)
	}
	p.out.WriteString(p.dev.take())
	return p.out.String()
}

// logger writes refusals into the transcript.
func (p *player) logger() *zap.Logger {
	enc := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "m"})
	return zap.New(zapcore.NewCore(enc, zapcore.AddSync(writer{p}), zap.WarnLevel))
}

type writer struct{ p *player }

func (w writer) Write(b []byte) (int, error) {
	line := string(b)
	if _, fields, ok := strings.Cut(line, `"error": "`); ok {
		line = strings.TrimSuffix(fields, "\"}\n") + "\n"
	}
	fmt.Fprintf(&w.p.out, "  log: %s", line)
	return len(b), nil
}

func (p *player) closeSession() {
	if p.session != nil {
		p.session.Close(nil)
		p.session = nil
	}
	if p.channel != nil {
		p.channel.Close()
		p.channel = nil
	}
}

func (p *player) end() {
	p.closeSession()
	if p.dev != nil {
		p.dev.close()
	}
	for _, fd := range p.files {
		_ = unix.Close(fd)
	}
}

func (p *player) send(line string) {
	if line == "" || line[0] == '#' {
		return
	}
	m, fds := p.parse(line)
	fmt.Fprintf(&p.out, "%s\n", line)
	reply, err := p.session.Handle(m, fds)
	switch {
	case err != nil:
		fmt.Fprintf(&p.out, "  closed: %v\n", err)
	case !reply.None():
		require.Equal(p.t, m.ID, reply.Message.ID)
		require.Equal(p.t, uint32(Version|FlagReply), reply.Message.Flags)
		p.printReply(reply)
	}
	p.out.WriteString(p.dev.take())
	p.fromChannel()
}

func (p *player) printReply(r Reply) {
	b := r.Message.Payload
	switch {
	case len(b) == u64Size && r.Message.ID == MsgGetVringBase:
		fmt.Fprintf(&p.out, "  reply: ring %d, base %d\n", parseState(b).Index, parseState(b).Num)
	case len(b) == u64Size:
		fmt.Fprintf(&p.out, "  reply: %#x\n", getU64(b))
	case r.Message.ID == MsgGetInflightFD:
		i := parseInflight(b)
		fmt.Fprintf(&p.out, "  reply: %d bytes at %d, %d queues of %d; payload of %d; %d fds\n",
			i.Size, i.Offset, i.Queues, i.QueueSize, len(b), len(r.FDs))
		if len(r.FDs) == 1 {
			p.keep("inflight", r.FDs[0])
			return
		}
	default:
		fmt.Fprintf(&p.out, "  reply: %d bytes: % x\n", len(b), b)
	}
	closeAll(r.FDs)
}

func (p *player) keep(name string, fd int) {
	if old, ok := p.files[name]; ok {
		_ = unix.Close(old)
	}
	p.files[name] = fd
}

// fromChannel prints what came over the back-end channel.
func (p *player) fromChannel() {
	if p.channel == nil {
		return
	}
	raw, err := p.channel.c.c.SyscallConn()
	require.NoError(p.t, err)
	var n int
	b := make([]byte, 256)
	_ = raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
		return true
	})
	if err == nil && n > 0 {
		fmt.Fprintf(&p.out, "  channel: % x\n", b[:n])
	}
}

// parse reads one line; see TestTranscripts.
func (p *player) parse(line string) (Message, []int) {
	words := strings.Fields(line)
	var fds []int
	fields := slices.DeleteFunc(words[1:], func(w string) bool {
		what, ok := strings.CutPrefix(w, "fd=")
		if ok {
			fds = append(fds, p.open(what))
		}
		return ok
	})
	name, need := strings.CutSuffix(words[0], "!")
	m := Message{Flags: Version}
	if need {
		m.Flags |= FlagNeedReply
	}
	for id, n := range idNames {
		if n == name {
			m.ID = id
		}
	}
	if n, ok := strings.CutPrefix(name, "message="); ok {
		m.ID = ID(number(p.t, n))
	}
	require.NotZero(p.t, m.ID, "message %s", name)
	if len(fields) == 1 && strings.HasPrefix(fields[0], "hex:") {
		b, err := hex.DecodeString(strings.ReplaceAll(fields[0][4:], "_", ""))
		require.NoError(p.t, err)
		m.Payload = b
		return m, fds
	}
	var more []int
	m.Payload, more = p.payload(m.ID, fields)
	return m, append(more, fds...)
}

func (p *player) payload(id ID, fields []string) (b []byte, fds []int) {
	n := make([]uint64, len(fields))
	if id != MsgSetMemTable && id != MsgAddMemReg && id != MsgRemMemReg && id != MsgSetConfig {
		for i, f := range fields {
			n[i] = number(p.t, f)
		}
	}
	switch id {
	case MsgSetFeatures, MsgSetProtocolFeatures, MsgSetVringKick, MsgSetVringCall, MsgSetVringErr:
		return putU64(n[0]), nil
	case MsgSetVringNum, MsgSetVringBase, MsgSetVringEnable:
		return VringState{uint32(n[0]), uint32(n[1])}.bytes(), nil
	case MsgGetVringBase:
		return VringState{Index: uint32(n[0])}.bytes(), nil
	case MsgSetVringAddr: // ring desc avail used [flags]
		a := VringAddr{Index: uint32(n[0]), Desc: n[1], Avail: n[2], Used: n[3]}
		if len(n) > 4 {
			a.Flags = uint32(n[4])
		}
		return a.bytes(), nil
	case MsgSetMemTable:
		table, fds := p.regions(fields)
		return tableBytes(table), fds
	case MsgAddMemReg:
		table, fds := p.regions(fields)
		return singleBytes(table[0]), fds
	case MsgRemMemReg:
		table, fds := p.regions(fields)
		closeAll(fds) // sent only where the transcript says fd=
		return singleBytes(table[0]), nil
	case MsgGetConfig: // offset size
		return configSpace{offset: uint32(n[0]), data: make([]byte, n[1])}.bytes(), nil
	case MsgSetConfig: // offset hex [flags]
		data, err := hex.DecodeString(fields[1])
		require.NoError(p.t, err)
		c := configSpace{offset: uint32(number(p.t, fields[0])), data: data}
		if len(fields) > 2 {
			c.flags = uint32(number(p.t, fields[2]))
		}
		return c.bytes(), nil
	case MsgGetInflightFD, MsgSetInflightFD: // queues size [bytes [offset]]
		n = append(n, 0, 0)
		return Inflight{Queues: uint16(n[0]), QueueSize: uint16(n[1]), Size: n[2], Offset: n[3]}.bytes(inflightSize + 4), nil
	}
	require.Empty(p.t, fields)
	return nil, nil
}

// regions reads NAME:GPA+SIZE@UVA[/OFFSET], each with its memory file of that
// name, 2 MiB long.
func (p *player) regions(fields []string) (table []shm.Region, fds []int) {
	for _, f := range fields {
		name, rest, _ := strings.Cut(f, ":")
		rest, off, _ := strings.Cut(rest, "/")
		rest, uva, _ := strings.Cut(rest, "@")
		gpa, size, _ := strings.Cut(rest, "+")
		r := shm.Region{GPA: number(p.t, gpa), Size: number(p.t, size), UVA: number(p.t, uva)}
		if off != "" {
			r.Offset = number(p.t, off)
		}
		table = append(table, r)
		if name != "" {
			fds = append(fds, p.open(name))
		}
	}
	return table, fds
}

// open makes a descriptor to send away.
func (p *player) open(what string) int {
	var fd int
	var err error
	switch what {
	case "event":
		fd, err = unix.Eventfd(1, unix.EFD_CLOEXEC)
	case "dir":
		fd, err = unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	case "opath":
		fd, err = unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0)
	case "readonly":
		file := p.open("ram")
		defer unix.Close(file)
		fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case "channel":
		var pair [2]int
		pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(p.t, err)
		if p.channel != nil {
			p.channel.Close()
		}
		p.channel = NewFrontend(unixConn(p.t, pair[0]), testTimeout)
		fd = pair[1]
	case "datagram":
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	default:
		file, ok := p.files[what]
		if !ok {
			file = memfd(p.t, what, 2<<20)
			p.files[what] = file
		}
		fd, err = unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
	}
	require.NoError(p.t, err)
	return fd
}

func memfd(t testing.TB, name string, size int64) int {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, size))
	return fd
}

func number(t testing.TB, s string) uint64 {
	v, err := strconv.ParseUint(s, 0, 64)
	require.NoError(t, err)
	return v
}
