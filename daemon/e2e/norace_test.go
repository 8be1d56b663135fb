//go:build !race

package e2e

// daemonFlags builds the daemon as the Makefile does.
func daemonFlags() []string { return []string{"-trimpath"} }
