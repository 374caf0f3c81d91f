package cases

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// entry is one case of the book; testdata/README.md has the fields and the words.
type entry struct {
	ID       string   `json:"id"`
	Part     string   `json:"part"`
	Kind     string   `json:"kind"`
	Title    string   `json:"title"`
	Rig      string   `json:"rig"`
	Trigger  string   `json:"trigger"`
	Expect   string   `json:"expect"`
	Spec     string   `json:"spec"`
	Try      string   `json:"try"`
	Source   []string `json:"source"`
	Evidence string   `json:"evidence"`
	Needs    []string `json:"needs"`
}

// caseID is a case's name as the book and the tests write it.
var caseID = regexp.MustCompile(`\b(P|MU|MS|MP|MB|MT|FB|PC|RC|SL)-[0-9]{3}\b`)

func readBook(t *testing.T) (book []entry) {
	t.Helper()
	f, err := os.Open("testdata/cases.jsonl")
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		var e entry
		require.NoError(t, d.Decode(&e), "line %d", len(book)+1)
		book = append(book, e)
	}
	require.NoError(t, lines.Err())
	return book
}

// mentioned are the ids that tests of the tree name, each with the files that do.
func mentioned(t *testing.T) map[string][]string {
	t.Helper()
	const root = "../.."
	found := map[string][]string{}
	require.NoError(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != root && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, "_test.go") || strings.HasSuffix(p, "book_test.go"):
			return nil
		}
		text, err := os.ReadFile(p)
		for _, id := range caseID.FindAllString(string(text), -1) {
			if !slices.Contains(found[id], p) {
				found[id] = append(found[id], p)
			}
		}
		return err
	}))
	return found
}

// The book is whole, no test names a case that is not in it, and testdata/coverage
// lists which cases have a test: go test ./test/cases -run TestCaseBook -rewrite.
func TestCaseBook(t *testing.T) {
	book := readBook(t)
	require.Len(t, book, 211)
	ids := map[string]bool{}
	for _, e := range book {
		require.Equal(t, e.ID, caseID.FindString(e.ID))
		require.False(t, ids[e.ID], "%s is there twice", e.ID)
		ids[e.ID] = true
		require.Equal(t, "R0", e.Rig, e.ID)
		for _, text := range []string{e.Part, e.Kind, e.Title, e.Trigger, e.Expect, e.Spec, e.Try} {
			require.NotEmpty(t, text, e.ID)
		}
	}
	tested := mentioned(t)
	for id, files := range tested {
		require.True(t, ids[id], "%s, which %s names, is not in the case book", id, strings.Join(files, " and "))
	}
	datadriven.RunTest(t, "testdata/coverage", func(t *testing.T, d *datadriven.TestData) string {
		return coverage(book, tested)
	})
}

// coverage prints, part by part, which cases have a test and which have none.
func coverage(book []entry, tested map[string][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d cases have a test\n", len(tested), len(book))
	for rest := book; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(e entry) bool { return e.Part != rest[0].Part })
		if n < 0 {
			n = len(rest)
		}
		var with, without []string
		for _, e := range rest[:n] {
			if tested[e.ID] != nil {
				with = append(with, e.ID)
			} else {
				without = append(without, e.ID)
			}
		}
		fmt.Fprintf(&b, "%s: %d of %d\n", rest[0].Part, len(with), n)
		list(&b, "tested", with)
		list(&b, "no test yet", without)
		rest = rest[n:]
	}
	return b.String()
}

// list prints ids, ten a line.
func list(b *strings.Builder, title string, ids []string) {
	for i := 0; i < len(ids); i += 10 {
		fmt.Fprintf(b, "  %-12s %s\n", title, strings.Join(ids[i:min(i+10, len(ids))], " "))
		title = ""
	}
}
