package helper

import (
	"strings"

	"cairn/criu/internal/frame"
)

func explain(log string, err error, t *tree, op string) *frame.Failure {
	f := &frame.Failure{Code: "failed", Message: "CRIU could not " + op + " the processes"}
	if err != nil {
		f.Message += ": " + err.Error()
	}
	for _, line := range strings.Split(log, "\n") {
		if strings.Contains(line, "Error (") || strings.Contains(line, "ERROR") {
			f.Log = append(f.Log, line)
		}
	}
	return f
}
