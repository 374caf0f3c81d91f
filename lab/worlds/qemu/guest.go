package qemu

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/sched"
)

// guestScheduler finds a scheduler that the guest's kernel has as well.
func guestScheduler(name string) (sched.Kind, error) {
	if k, err := sched.Find(name); err == nil && k.Linux != "" {
		return k, nil
	}
	var has []string
	for _, k := range sched.Kinds() {
		if k.Linux != "" {
			has = append(has, k.Linux)
		}
	}
	return sched.Kind{}, fmt.Errorf("a Linux guest has no I/O scheduler %q; it has: %s", name, strings.Join(has, ", "))
}

// scheduledRequests is what nr_requests becomes with a scheduler over a shorter queue: as
// many as there would be with QEMU's default queue. The kernel's own rule gives twice the
// queue, in which a scheduler has next to nothing to choose from.
const scheduledRequests = 128

// load is a run in one guest.
type load struct {
	machine
	disk     string // vda
	dir      string // of the job and its output, in the guest
	warnings []string
	env      map[string]string
	splits   int  // a request of more bytes than that may be split
	cached   bool // the disk has a write cache, which a sync flushes
}

// queue is the disk's directory of block layer settings.
func (l *load) queue() string { return "/sys/block/" + l.disk + "/queue/" }

// prepare sets the guest's block layer up, and writes the job file.
func (l *load) prepare(ctx context.Context, s *plan.Spec, seed uint64) error {
	scheduler, err := guestScheduler(s.Guest.Name)
	if err != nil {
		return err
	}
	if err := l.setScheduler(ctx, scheduler.Linux); err != nil {
		return err
	}
	if err := l.set(ctx, l.queue()+"nomerges", strconv.Itoa(s.NoMerges)); err != nil {
		return err
	}
	named := slices.ContainsFunc(s.Guest.Knobs, func(k sched.Knob) bool { return k.Key == "nr_requests" })
	if !named && scheduler.Meets && queueSize(&s.Cell) < scheduledRequests {
		if err := l.set(ctx, l.queue()+"nr_requests", strconv.Itoa(scheduledRequests)); err != nil {
			return err
		}
	}
	for _, k := range s.Guest.Knobs {
		if err := l.knob(ctx, k); err != nil {
			return err
		}
	}
	if err := l.look(ctx, s); err != nil {
		return err
	}
	return l.write(ctx, fio.Fio(s.Workload, "/dev/"+l.disk, seed))
}

// setScheduler wants the kernel to say that it has taken it: it may have to load a module.
func (l *load) setScheduler(ctx context.Context, name string) error {
	file := l.queue() + "scheduler"
	has, err := l.Sh(ctx, "echo "+name+" > "+file+"; cat "+file)
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(has), "["+name+"]") {
		return fmt.Errorf("the guest's kernel does not take the scheduler %s for %s: it says %s", name, l.disk, has)
	}
	return nil
}

// set writes a setting and reads it back.
func (l *load) set(ctx context.Context, file, value string) error {
	has, err := l.Sh(ctx, "echo '"+value+"' > "+file+" && cat "+file)
	if err != nil {
		return err
	}
	if has != value {
		return fmt.Errorf("the guest's kernel makes %q of %s=%s", has, file, value)
	}
	return nil
}

// knob sets a knob of the guest's scheduler, or of the disk's queue.
func (l *load) knob(ctx context.Context, k sched.Knob) error {
	key := strings.ReplaceAll(k.Key, "-", "_")
	if err := checkKnob(k); err != nil {
		return err
	}
	where, err := l.Sh(ctx, fmt.Sprintf("cd %s; for f in iosched/%s %s; do if [ -e $f ]; then echo $f; exit; fi; done; ls iosched 2> /dev/null; exit 1", l.queue(), key, key))
	if err != nil {
		return fmt.Errorf("the guest's scheduler has no knob %q: %w", key, err)
	}
	return l.set(ctx, l.queue()+where, k.Value)
}

// checkKnob refuses what has no place in a shell's line.
func checkKnob(k sched.Knob) error {
	harmless := func(s string) bool {
		return s != "" && strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789_-.") == ""
	}
	if !harmless(k.Key) || strings.Contains(k.Key, "..") || !harmless(k.Value) {
		return fmt.Errorf("knob %q=%q of the guest: want letters, digits, '_', '-' and '.'", k.Key, k.Value)
	}
	return nil
}

// look notes what the guest's disk is in fact.
func (l *load) look(ctx context.Context, s *plan.Spec) error {
	text, err := l.Sh(ctx, "cat "+l.queue()+"max_sectors_kb "+l.queue()+"max_segments /sys/block/"+l.disk+"/mq/0/nr_tags; "+
		"ls /sys/block/"+l.disk+"/mq | wc -l; uname -r; fio --version; cat "+l.queue()+"write_cache")
	if err != nil {
		return err
	}
	f := strings.Fields(text)
	if len(f) != 8 {
		return fmt.Errorf("the guest describes its disk by %q: want 8 words", text)
	}
	var n [4]int
	for i := range n {
		if n[i], err = strconv.Atoi(f[i]); err != nil {
			return fmt.Errorf("the guest describes its disk by %q: %w", text, err)
		}
	}
	const page = 4096
	l.splits, l.cached = min(n[0]<<10, n[1]*page), f[7] == "back"
	if want := queueSize(&s.Cell); n[2] != want {
		l.warnings = append(l.warnings, fmt.Sprintf("The guest's disk has %d requests in a queue, not the %d that were asked for.", n[2], want))
	}
	if want := max(s.Queues, 1); n[3] != want {
		l.warnings = append(l.warnings, fmt.Sprintf("The guest uses %d queues, not %d: it has no use for more than it has CPUs.", n[3], want))
	}
	l.env = map[string]string{"guest_kernel": f[4], "guest_fio": f[5]}
	return nil
}

// chunk is how much of a job file goes into one command, in characters.
const chunk = 3000

// write puts the job file into the guest.
func (l *load) write(ctx context.Context, job string) (err error) {
	if l.dir, err = l.Sh(ctx, "mktemp -d /tmp/elevisor.XXXXXX"); err != nil {
		return err
	}
	text := base64.StdEncoding.EncodeToString([]byte(job))
	for text != "" {
		part := text[:min(chunk, len(text))]
		text = text[len(part):]
		if _, err := l.Sh(ctx, "echo "+part+" >> "+l.dir+"/job.b64"); err != nil {
			return err
		}
	}
	_, err = l.Sh(ctx, "cd "+l.dir+" && base64 -d job.b64 > job.fio && sync && echo 3 > /proc/sys/vm/drop_caches")
	return err
}

// begin starts fio, and returns at the ramp's end: when the first request of the load was
// seen and as much time has passed. The shell that waits goes before fio, and starts next to
// no program, or the load itself would make it late.
func (l *load) begin(ctx context.Context, ramp time.Duration) error {
	stat := "/sys/block/" + l.disk + "/stat"
	script := "cd " + l.dir + " || exit 1; read -r b < " + stat + "; echo $b > before; " +
		"(fio --output=out --output-format=json+ job.fio > err 2>&1 & echo $! > pid; wait $!; s=$?; cat " + stat + " > after; echo $s > s; mv s status) > /dev/null 2>&1 < /dev/null & "
	if ramp > 0 {
		script += fmt.Sprintf("renice -n -19 -p $$ > /dev/null 2>&1; "+
			"until [ -e status ] || { read -r a < %[1]s; [ \"$a\" != \"$b\" ]; }; do sleep 0.01; done; sleep %.3[2]f; read -r b < %[1]s; echo $b > before", stat, ramp.Seconds())
	}
	_, err := l.Sh(ctx, script)
	return err
}

// end waits for fio, and returns what it and the kernel have counted.
func (l *load) end(ctx context.Context) (before, after sysStat, out []byte, err error) {
	text, err := l.Sh(ctx, "cd "+l.dir+"; while [ ! -e status ]; do sleep 0.1; done; cat status before after")
	if err != nil {
		return before, after, nil, err
	}
	lines := strings.Split(text, "\n")
	if len(lines) != 3 {
		return before, after, nil, fmt.Errorf("the guest tells of the load's end by %q: want 3 lines", text)
	}
	if status := strings.TrimSpace(lines[0]); status != "0" {
		said, _ := l.Sh(ctx, "cd "+l.dir+"; cat err; grep -v '^ *[]\"{}]' out | head -c 2000")
		return before, after, nil, fmt.Errorf("fio in the guest: status %s: %s", status, said)
	}
	if before, err = parseStat(lines[1]); err != nil {
		return before, after, nil, err
	}
	if after, err = parseStat(lines[2]); err != nil {
		return before, after, nil, err
	}
	out, err = l.fetch(ctx)
	return before, after, out, err
}

// tidy leaves nothing in a guest that lives on.
func (l *load) tidy(ctx context.Context) error {
	if l.dir == "" {
		return nil
	}
	_, err := l.Sh(ctx, "cd "+l.dir+" && { [ ! -e pid ] || [ -e status ] || { kill $(cat pid); until [ -e status ]; do sleep 0.1; done; }; } 2> /dev/null; rm -rf "+l.dir)
	return err
}
