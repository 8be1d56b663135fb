package cli

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// line prints one line.
func (a *app) line(format string, args ...any) error {
	_, err := fmt.Fprintf(a.Out, format+"\n", args...)
	return err
}

// table prints rows in columns.
func (a *app) table(header string, rows [][]string) error {
	w := tabwriter.NewWriter(a.Out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, header)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// printable quotes what could act on a terminal.
func printable(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

func size(n int64) string {
	const units = "KMGTP"
	f, u := float64(n), -1
	for f >= 1000 && u < len(units)-1 {
		f /= 1024
		u++
	}
	if u < 0 {
		return strconv.FormatInt(n, 10) + "B"
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + units[u:u+1] + "B"
}

func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return fmt.Sprintf("%dd ago", int(d.Hours()/24))
}

// set returns nil for a zero value: a field that is left out.
func set[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// pairs reads KEY=VALUE arguments; none give nil.
func pairs(what string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(list))
	for _, p := range list {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, usagef("%s %q: want KEY=VALUE", what, p)
		}
		m[k] = v
	}
	return m, nil
}

// given returns nil for a map that was not given.
func given[M ~map[string]string](m map[string]string) *M {
	if m == nil {
		return nil
	}
	named := M(m)
	return &named
}
