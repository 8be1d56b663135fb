// Package rig runs a whole Cairn in a directory of its own and takes everything
// away again: for the benchmark and the demonstration, which must leave a machine
// as they found it.
package rig
