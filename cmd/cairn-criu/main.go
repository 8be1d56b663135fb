// Cairn-criu dumps and restores the processes of one sandbox and ends. See package helper.
package main

import (
	"os"

	"cairn/criu/helper"
)

func main() {
	os.Exit(helper.Main(os.Args))
}
