package report

import (
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/elevisor/elevisor/lab/plan"
)

const (
	nameMax = 11  // length of a scheduler's name in a table: mq-deadline
	none    = "-" // in place of a missing number
)

// clean replaces the characters of a name from outside that would move a cursor or break a
// line.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == ' ':
			return ' '
		case r == utf8.RuneError || !unicode.IsPrint(r) || unicode.Is(unicode.M, r):
			return '?'
		}
		return r
	}, s)
}

// clip shortens s to n characters.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "~"
	}
	return s
}

// digits writes x with three significant digits, or without decimals if it is larger.
func digits(x float64) string {
	switch a := math.Abs(x); {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return none
	case a >= 1e15:
		return strconv.FormatFloat(x, 'g', 3, 64)
	case a >= 99.95:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case a == 0:
		return "0"
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

// mean writes a sample's mean.
func mean(s plan.Sample) string {
	if s.N == 0 {
		return none
	}
	return digits(s.Mean)
}

// meanSD writes a sample's mean and its standard deviation.
func meanSD(s plan.Sample) string {
	if s.N == 0 {
		return none
	}
	return digits(s.Mean) + " (" + digits(s.SD) + ")"
}

// latency writes a time in µs in a suitable unit; micro is how a terminal or a page spells
// µs.
func latency(us float64, micro string) string {
	switch {
	case math.IsNaN(us) || math.IsInf(us, 0):
		return none
	case us >= 999_500:
		return digits(us/1e6) + " s"
	case us >= 999.5:
		return digits(us/1e3) + " ms"
	}
	return digits(us) + " " + micro
}

// ratio writes a ratio, with three decimals as long as it is small.
func ratio(x float64) string {
	switch a := math.Abs(x); {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return none
	case a >= 1e6:
		return strconv.FormatFloat(x, 'g', 2, 64)
	case a >= 99.995:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case a >= 9.9995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 3, 64)
}

// interval writes a ratio with its confidence interval.
func interval(r, low, high float64) string {
	return ratio(r) + " [" + ratio(low) + ", " + ratio(high) + "]"
}

// probability writes a p-value.
func probability(p float64) string {
	switch {
	case !(p >= 0 && p <= 1):
		return none
	case p < 0.0001:
		return "<0.0001"
	}
	return strconv.FormatFloat(p, 'f', 4, 64)
}

// sorted returns the keys of an environment in order.
func sorted(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// shell quotes a command for a shell.
func shell(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if w == "" || strings.ContainsFunc(w, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:=,+@%", r)
		}) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return clean(strings.Join(quoted, " "))
}

// wrap breaks a text into lines of at most width characters. All but the first are
// indented.
func wrap(s string, width int, indent string) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(clean(s)) {
		for utf8.RuneCountInString(word) > width-len(indent) { // no space to break at
			r := []rune(word)
			cut := width - len(indent)
			if line != "" {
				lines, line = append(lines, line), ""
			}
			lines = append(lines, lead(lines, indent)+string(r[:cut]))
			word = string(r[cut:])
		}
		switch {
		case line == "":
			line = lead(lines, indent) + word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

func lead(lines []string, indent string) string {
	if len(lines) == 0 {
		return ""
	}
	return indent
}
