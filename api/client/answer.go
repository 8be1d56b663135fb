package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"cairn/api/types"
)

// maxProblem bounds the body of an error answer, bytes.
const maxProblem = 1 << 20

// Error is what the daemon answered instead of what was asked for.
type Error struct {
	types.Problem
}

func (e *Error) Error() string {
	s := e.Detail
	if s == "" {
		s = e.Title
	}
	if e.Errors != nil && len(*e.Errors) > 0 {
		s = ""
		for i, f := range *e.Errors {
			if i > 0 {
				s += "; "
			}
			s += f.Field + ": " + f.Detail
			if f.Expected != nil {
				s += " (expected " + *f.Expected + ")"
			}
		}
	}
	s += " (" + string(e.Code)
	if e.Code == types.Internal && e.RequestId != nil {
		s += ", request " + *e.RequestId
	}
	return s + ")"
}

// CodeOf returns the code that err carries, "" for an error of another kind.
func CodeOf(err error) types.Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// check returns the error that an answer stands for, and then closes its body.
func check(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	if resp.StatusCode < 300 {
		return nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	e := &Error{}
	if err := json.Unmarshal(data, &e.Problem); err != nil || e.Code == "" {
		return fmt.Errorf("the daemon answered %s", resp.Status)
	}
	return e
}

// Get reads a JSON answer.
func Get[T any](resp *http.Response, err error) (T, error) {
	var v T
	if err := check(resp, err); err != nil {
		return v, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		return v, fmt.Errorf("read the daemon's answer: %w", err)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be used again
	return v, nil
}

// Done reads an answer that has no body.
func Done(resp *http.Response, err error) error {
	if err := check(resp, err); err != nil {
		return err
	}
	return resp.Body.Close()
}

// Body gives an answer's bytes. An answer that the daemon cut off ends with
// io.ErrUnexpectedEOF. The caller closes it.
func Body(resp *http.Response, err error) (io.ReadCloser, http.Header, error) {
	if err := check(resp, err); err != nil {
		return nil, nil, err
	}
	return resp.Body, resp.Header, nil
}

// All reads every page of a list; fetch gets one.
func All[T any](fetch func(cursor *string) (items []T, next string, err error)) ([]T, error) {
	var all []T
	var cursor *string
	for {
		items, next, err := fetch(cursor)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if next == "" {
			return all, nil
		}
		cursor = &next
	}
}
