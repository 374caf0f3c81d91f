// Package report has a browser show a report of compare: what a parser takes for right
// may still be too wide, say something on the console, or ask somebody for something.
package report

import (
	"bytes"
	"context"
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/lab/report"
	"github.com/elevisor/elevisor/lab/report/reporttest"
)

// window is the width that a report has to fit.
const window = "1280,900"

// probe is put behind a copy of the page, where it writes down what only a browser knows.
// The page itself has no scripts.
const probe = `<script>
addEventListener("load", () => {
  const seen = [document.documentElement.scrollWidth, performance.getEntriesByType("resource").length];
  const outside = [];
  for (const svg of document.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim());
    const boxes = texts.map(t => t.getBoundingClientRect());
    boxes.forEach((b, i) => {
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1) outside.push("outside: " + texts[i].textContent);
      boxes.slice(0, i).forEach((o, j) => {
        const w = Math.min(b.right, o.right) - Math.max(b.left, o.left), h = Math.min(b.bottom, o.bottom) - Math.max(b.top, o.top);
        if (w > 1 && h > 4) outside.push("overlap: " + texts[j].textContent + " | " + texts[i].textContent);
      });
    });
  }
  document.body.dataset.seen = seen.join(" ");
  document.body.dataset.bad = outside.slice(0, 20).join("; ");
});
</script>`

// browser runs Chromium over a page, with a profile of its own and no network, and gives
// what it printed and what it logged.
func browser(t *testing.T, page string, args ...string) (stdout, stderr string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no browser")
	}
	program, err := exec.LookPath("chromium")
	if err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "make test installs what is missing here")
		t.Skip("no chromium (Debian: chromium)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	all := append([]string{
		"--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND",
		"--enable-logging=stderr", "--user-data-dir=" + t.TempDir(),
	}, args...)
	if os.Geteuid() == 0 {
		all = append(all, "--no-sandbox") // Chromium's sandbox refuses root
	}
	cmd := exec.CommandContext(ctx, program, append(all, "file://"+page)...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.WaitDelay = 10 * time.Second
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	require.NoError(t, cmd.Run(), "%s", &log)
	return out.String(), log.String()
}

var consoleLine = regexp.MustCompile(`(?m)^.*:CONSOLE[:(].*$`)

// write makes a page of synthetic results, with more behind it.
func write(t *testing.T, shape reporttest.Shape, more string) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, report.HTML(&b, reporttest.Results(shape)))
	text := b.String()
	if more != "" { // the page's policy forbids the probe, so the copy has none
		policy := regexp.MustCompile(`<meta http-equiv="Content-Security-Policy"[^>]*>`)
		require.Regexp(t, policy, text)
		text = policy.ReplaceAllString(text, "") + more
	}
	path := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func shapes() map[string]reporttest.Shape {
	full, small, large := reporttest.Full(), reporttest.Full(), reporttest.Full()
	small.Guests, small.Hosts, small.Workloads, small.Repeats, small.VMs = small.Guests[:1], small.Hosts[:1], small.Workloads[:1], 1, 1
	large.Guests = append(large.Guests, "kyber-budget")
	large.Hosts = append(large.Hosts, "anticipatory", "fifo-batch-1", "deadline-16")
	large.Workloads, large.Trace, large.Repeats = large.Workloads[1:], 300, 3
	return map[string]reporttest.Shape{"full": full, "one cell": small, "large": large}
}

// TestLayout wants the page to fit, load nothing, and no text in a picture to lie on
// another or to leave the picture.
func TestLayout(t *testing.T) {
	for name, shape := range shapes() {
		t.Run(name, func(t *testing.T) {
			dom, log := browser(t, write(t, shape, probe), "--window-size="+window, "--virtual-time-budget=20000", "--dump-dom")
			require.Empty(t, consoleLine.FindAllString(log, -1))
			seen := regexp.MustCompile(`data-seen="([^"]*)"`).FindStringSubmatch(dom)
			require.NotNil(t, seen, "the probe did not run: %s", log)
			require.Equal(t, "1280 0", seen[1], "width of the page, and what it loaded")
			bad := regexp.MustCompile(`data-bad="([^"]*)"`).FindStringSubmatch(dom)
			require.NotNil(t, bad)
			require.Empty(t, bad[1])
		})
	}
}

// TestPicture has the page as it is drawn, and nothing said about it.
func TestPicture(t *testing.T) {
	shot := filepath.Join(t.TempDir(), "shot.png")
	_, log := browser(t, write(t, reporttest.Full(), ""), "--window-size="+window, "--screenshot="+shot)
	require.Empty(t, consoleLine.FindAllString(log, -1))
	f, err := os.Open(shot)
	require.NoError(t, err)
	defer f.Close()
	picture, err := png.Decode(f)
	require.NoError(t, err)
	require.Equal(t, image.Pt(1280, 900), picture.Bounds().Size())
	colours := map[any]bool{}
	for y := 0; y < 900; y += 2 {
		for x := 0; x < 1280; x += 2 {
			colours[picture.At(x, y)] = true
		}
	}
	require.Greater(t, len(colours), 20, "the page is blank")
}

// TestSeesFaults plants what the others look for.
func TestSeesFaults(t *testing.T) {
	fault := `<div style="width:2000px">wide</div><img src="http://elevisor.invalid/x.png" alt=""><script>console.error("planted")</script>` +
		`<svg width="90" height="40"><text x="5" y="20">one above</text><text x="9" y="22">another</text></svg>`
	dom, log := browser(t, write(t, shapes()["one cell"], fault+probe), "--window-size="+window, "--virtual-time-budget=20000", "--dump-dom")
	require.Contains(t, strings.Join(consoleLine.FindAllString(log, -1), "\n"), "planted")
	seen := regexp.MustCompile(`data-seen="(\d+) (\d+)"`).FindStringSubmatch(dom)
	require.NotNil(t, seen)
	require.NotEqual(t, "1280", seen[1])
	require.NotEqual(t, "0", seen[2])
	require.Regexp(t, `data-bad="[^"]*overlap: one above \| another`, dom)
}
