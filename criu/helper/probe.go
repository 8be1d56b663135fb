package helper

import "cairn/criu/internal/frame"

const probeRole = "probe"

func probeInside() int                { return 1 }
func probe(s frame.Setup) frame.Event { return frame.Event{} }
