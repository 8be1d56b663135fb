// Package cli is the command line of Cairn: one file for each command.
//
// It talks to the daemon through package client alone. A command is a method of
// app that returns a cobra command; commands.go lists them all.
//
// Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 conflict or
// busy, 130 interrupted. run and exec pass the command's own code through (128 +
// signal when it was killed by one); there, 125 is a failure of Cairn itself, 126
// a command that cannot be run, 127 one that does not exist.
//
// Answers go to standard output, for people or, with --json, as the API gives
// them; everything else (errors, progress) goes to standard error. What comes
// from a sandbox is untrusted: names are quoted before they reach a terminal, and
// archives are unpacked with os.Root.
package cli
