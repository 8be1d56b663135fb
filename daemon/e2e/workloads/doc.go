// Package workloads tests that what people run comes back: interpreters, servers,
// databases, terminals, builds, many threads and many processes are checkpointed with
// their memory, go on, are taken back, and are forked, each copy going its own way.
//
// Vocabulary. A workload is a program that is started, asked for its state (what it
// holds in memory and in files), and changed by a word that the state then shows. The
// cycle is what every workload goes through (cycle_test.go). A mark is a file that the
// cycle changes together with the memory, so that each test looks at both.
//
// The directory programs is /w in the image; the program agent is /w/agent. One daemon,
// without the race detector, serves all tests. What doesn't come back is asserted too:
// criu/WORKLOADS.md lists it by the test that shows it.
package workloads
