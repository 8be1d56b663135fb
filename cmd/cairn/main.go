// Command cairn is the command line of a Cairn daemon.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"cairn/cmd/cairn/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Main(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Getenv)
	stop()
	os.Exit(code)
}
