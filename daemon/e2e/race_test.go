//go:build race

package e2e

// daemonFlags has the daemon look for races as the tests do.
func daemonFlags() []string { return []string{"-race"} }
