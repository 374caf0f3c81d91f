// Package report has a browser show the reports of compare. A page that a parser accepts
// may still be too wide, print errors on the console or load something.
package report

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"image"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/lab/report"
	"github.com/elevisor/elevisor/lab/report/reporttest"
)

// The window, which a report has to fit.
const width, height = 1280, 900

// probe is appended to a copy of a page, and tells the page around it what only a browser
// knows. The page itself has no scripts.
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
  parent.postMessage({seen: seen.join(" "), bad: outside.slice(0, 20).join("; ")}, "*");
});
</script>`

// frames begins the page that has all others in frames, each as wide as the window. The
// first one, which has no probe, is what the window shows. It writes down what probes say.
const frames = `<!DOCTYPE html><style>body { margin: 0 } iframe { display: block; border: 0; width: 1280px; height: 900px }</style><script>
addEventListener("message", m => {
  for (const f of document.querySelectorAll("iframe"))
    if (f.contentWindow === m.source) { f.dataset.seen = m.data.seen; f.dataset.bad = m.data.bad; }
});
</script>
`

// planted is what the tests look for.
const planted = `<div style="width:2000px">wide</div><img src="http://elevisor.invalid/x.png" alt=""><script>console.error("planted")</script>` +
	`<svg width="90" height="40"><text x="5" y="20">one above</text><text x="9" y="22">another</text></svg>`

// shapes are those of the pages. Traces are short: how many points a plot has does not
// change its layout.
func shapes() map[string]reporttest.Shape {
	full, small, large := reporttest.Full(), reporttest.Full(), reporttest.Full()
	full.Trace = 300
	small.Guests, small.Hosts, small.Workloads, small.Repeats, small.VMs = small.Guests[:1], small.Hosts[:1], small.Workloads[:1], 1, 1
	large.Guests = append(large.Guests, "kyber-budget")
	large.Hosts = append(large.Hosts, "anticipatory", "fifo-batch-1", "deadline-16")
	large.Workloads, large.Trace, large.Repeats = large.Workloads[1:], 300, 3
	return map[string]reporttest.Shape{"full": full, "one cell": small, "large": large}
}

// seen is what a browser says of one page.
type seen struct {
	size    string // its width, and how many things it loaded
	bad     string // texts that lie on each other or outside their picture
	console []string
}

// shown is what the browser says of all pages: those of shapes, "picture" without a probe,
// and "planted".
type shown struct {
	pages map[string]*seen
	shot  []byte // PNG
	log   string
}

// show has one browser show all pages, once for all tests: its start takes longer than a
// page.
var show = sync.OnceValues(func() (*shown, error) {
	dir, err := os.MkdirTemp("", "elevisor-report-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	names, err := write(dir)
	if err != nil {
		return nil, err
	}
	index := frames
	for _, name := range names {
		index += fmt.Sprintf("<iframe id=%q src=%q></iframe>\n", name, file(name))
	}
	if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte(index), 0o600); err != nil {
		return nil, err
	}
	dom, log, err := browser(dir)
	if err != nil {
		return nil, err
	}
	s := &shown{pages: map[string]*seen{}, log: log}
	for _, name := range names {
		frame := regexp.MustCompile(`<iframe id="` + name + `"[^>]*>`).FindString(dom)
		page := &seen{size: attribute(frame, "seen"), bad: attribute(frame, "bad")}
		for _, line := range consoleLine.FindAllString(log, -1) {
			if strings.Contains(line, file(name)) {
				page.console = append(page.console, line)
			}
		}
		s.pages[name] = page
	}
	s.shot, err = os.ReadFile(filepath.Join(dir, "shot.png"))
	return s, err
})

// look shows the pages, or skips the test.
func look(t *testing.T) *shown {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no browser")
	}
	if _, err := exec.LookPath("chromium"); err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "make test installs what is missing here")
		t.Skip("no chromium (Debian: chromium)")
	}
	s, err := show()
	require.NoError(t, err)
	return s
}

// file is the file of a page.
func file(name string) string { return strings.ReplaceAll(name, " ", "-") + ".html" }

var consoleLine = regexp.MustCompile(`(?m)^.*:CONSOLE[:(].*$`)

// attribute is a data attribute of a tag.
func attribute(tag, name string) string {
	if m := regexp.MustCompile(`data-` + name + `="([^"]*)"`).FindStringSubmatch(tag); m != nil {
		return html.UnescapeString(m[1])
	}
	return "none"
}

// write makes the pages of synthetic results, and returns their names.
func write(dir string) (names []string, err error) {
	pages := map[string]string{}
	for name, shape := range shapes() {
		var b bytes.Buffer
		if err := report.HTML(&b, reporttest.Results(shape)); err != nil {
			return nil, err
		}
		pages[name] = b.String()
	}
	full := pages["full"]
	for name := range pages {
		pages[name] = probed(pages[name]) + probe
	}
	pages["planted"] = strings.TrimSuffix(pages["one cell"], probe) + planted + probe
	pages["picture"] = full
	names = slices.Sorted(maps.Keys(pages))
	at := slices.Index(names, "picture")
	names[0], names[at] = names[at], names[0]
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(dir, file(name)), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// policy forbids the probe, so that the copies that have one do without it.
var policy = regexp.MustCompile(`<meta http-equiv="Content-Security-Policy"[^>]*>`)

func probed(page string) string { return policy.ReplaceAllString(page, "") }

// browser runs Chromium over a directory's index.html, with a profile of its own and no
// network, and returns the page as it was in the end and what was logged. The window's
// picture is in shot.png.
func browser(dir string) (dom, log string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	args := []string{
		"--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND",
		"--enable-logging=stderr", "--user-data-dir=" + filepath.Join(dir, "profile"), fmt.Sprintf("--window-size=%d,%d", width, height),
		"--virtual-time-budget=20000", "--dump-dom", "--screenshot=" + filepath.Join(dir, "shot.png"),
	}
	if os.Geteuid() == 0 {
		args = append(args, "--no-sandbox") // Chromium's sandbox refuses root
	}
	cmd := exec.CommandContext(ctx, "chromium", append(args, "file://"+filepath.Join(dir, "index.html"))...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.WaitDelay = 10 * time.Second
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		return "", "", fmt.Errorf("chromium: %w: %s", err, &messages)
	}
	return out.String(), messages.String(), nil
}

// TestLayout wants each page to fit the window, load nothing and print nothing, and no text
// in a picture to lie on another one or to leave the picture.
func TestLayout(t *testing.T) {
	s := look(t)
	for name := range shapes() {
		t.Run(name, func(t *testing.T) {
			page := s.pages[name]
			require.Empty(t, page.console)
			require.Equal(t, "1280 0", page.size, "width of the page, and what it loaded: %s", s.log)
			require.Empty(t, page.bad)
		})
	}
}

// TestPicture wants the page as it is written to be drawn.
func TestPicture(t *testing.T) {
	s := look(t)
	for _, line := range consoleLine.FindAllString(s.log, -1) {
		require.Contains(t, line, file("planted"), "on the console of any other page")
	}
	picture, err := png.Decode(bytes.NewReader(s.shot))
	require.NoError(t, err)
	require.Equal(t, image.Pt(width, height), picture.Bounds().Size())
	colours := map[any]bool{}
	for y := 0; y < height; y += 2 {
		for x := 0; x < width; x += 2 {
			colours[picture.At(x, y)] = true
		}
	}
	require.Greater(t, len(colours), 20, "the page is blank")
}

// TestSeesFaults plants what the others look for.
func TestSeesFaults(t *testing.T) {
	page := look(t).pages["planted"]
	require.Contains(t, strings.Join(page.console, "\n"), "planted")
	wide, loaded, found := strings.Cut(page.size, " ")
	require.True(t, found, page.size)
	require.NotEqual(t, "1280", wide)
	require.NotEqual(t, "0", loaded)
	require.Contains(t, page.bad, "overlap: one above | another")
}
