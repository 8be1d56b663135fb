package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) eventsCommand() *cobra.Command {
	var after int64
	c := &cobra.Command{
		Use: "events", Short: "Show every change as it happens",
		Long:    "Show every change as it happens, one line (with --json one object) each, until interrupted.",
		Example: "  cairn events --after 0", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p := &types.StreamEventsParams{}
			if c.Flags().Changed("after") {
				p.After = &after
			}
			e, err := client.OpenStream(a.client.StreamEvents(c.Context(), p, client.Accept(client.EventStream)))
			if err != nil {
				return err
			}
			defer e.Close()
			for {
				ev, err := e.Next()
				if errors.Is(err, io.EOF) {
					return errors.New("the daemon ended the stream")
				}
				if err != nil {
					return err
				}
				if a.json {
					if err := a.line("%s", ev.Data); err != nil {
						return err
					}
					continue
				}
				var v types.Event
				if err := json.Unmarshal(ev.Data, &v); err != nil {
					return fmt.Errorf("read event: %w", err)
				}
				if err := a.line("%d %s %s %s %s", v.Seq, v.Time.Format(time.RFC3339), v.Type, orDash(v.Sandbox), orDash(v.Subject)); err != nil {
					return err
				}
			}
		},
	}
	c.Flags().Int64Var(&after, "after", 0, "begin with those after this number (0: all that are kept)")
	return c
}
