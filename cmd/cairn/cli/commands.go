package cli

import "github.com/spf13/cobra"

// commands lists every command; a new one is added here.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.runCommand(), a.psCommand(), a.execCommand(), a.attachCommand(), a.cpCommand(), a.filesCommand(), a.rmCommand(),
		a.pauseCommand(), a.resumeCommand(), a.updateCommand(), a.processesCommand(), a.logsCommand(), a.killCommand(),
		a.checkpointCommand(), a.logCommand(), a.showCommand(), a.diffCommand(), a.restoreCommand(), a.forkCommand(),
		a.verifyCommand(), a.imagesCommand(), a.eventsCommand(), a.infoCommand(), a.demoCommand(),
	}
}
