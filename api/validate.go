package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"

	"cairn/api/types"
	"cairn/sandbox"
)

// bodyTime is how long the whole of a JSON body may take to arrive.
const bodyTime = time.Minute

// maxFieldErrors bounds how many wrong fields one problem names.
const maxFieldErrors = 16

// ulidPattern is what follows the prefix of an id.
var ulidPattern = regexp.MustCompile(`^[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{26}$`)

// unsupportedProperty is how the validator names an unknown field.
var unsupportedProperty = regexp.MustCompile(`^property "(.*)" is unsupported$`)

// buffered is a body that is in memory already.
type buffered struct {
	bytes.Reader
	raw []byte
}

func (*buffered) Close() error { return nil }

// validate checks a request against the contract before its handler runs. A JSON
// body is read here, bounded in size and time.
func (s *server) validate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := operationOf(r)
		if err := op.checkParameters(r); err != nil {
			s.fail(w, r, err)
			return
		}
		if err := s.checkBody(w, r, op); err != nil {
			s.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (op *operation) checkParameters(r *http.Request) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return sandbox.Invalid("query", "the query string is malformed")
	}
	var found fieldErrors
	for name, values := range query {
		switch {
		case !op.query[name]:
			found = append(found, types.FieldError{Field: clip(name), Detail: "there is no such query parameter"})
		case len(values) > 1 && name != "label":
			found = append(found, types.FieldError{Field: name, Detail: "given more than once"})
		}
	}
	pathParams := make(map[string]string)
	params := chi.RouteContext(r.Context()).URLParams
	for i, k := range params.Keys {
		v := params.Values[i]
		if r.URL.RawPath != "" {
			if v, err = url.PathUnescape(v); err != nil {
				return sandbox.Invalid(k, "it is not escaped as a URL should be")
			}
		}
		pathParams[k] = v
		if id, ok := strings.CutPrefix(v, "sbx_"); ok && k == "sandbox_id" && !ulidPattern.MatchString(id) {
			return sandbox.Invalid(k, "sbx_ must be followed by a ULID")
		}
	}
	for _, p := range op.params {
		var values []string
		switch p.In {
		case openapi3.ParameterInPath:
			values = []string{pathParams[p.Name]}
		case openapi3.ParameterInHeader:
			values = r.Header.Values(p.Name)
		default:
			values = query[p.Name]
		}
		found = append(found, checkParameter(p, values)...)
	}
	if len(found) == 0 {
		return nil
	}
	return bounded(found)
}

// checkParameter validates the values of one parameter. The validator's own way
// compiles a schema for each call, which would cost more than running a command.
func checkParameter(p *openapi3.Parameter, values []string) fieldErrors {
	schema := p.Schema.Value
	if len(values) == 0 {
		if p.Required {
			return fieldErrors{{Field: p.Name, Detail: "it is needed", Expected: optional(expected(schema))}}
		}
		return nil
	}
	var v any = values[0]
	var err error
	switch {
	case schema.Type.Is(openapi3.TypeInteger):
		var n int64
		n, err = strconv.ParseInt(values[0], 10, 64)
		v = float64(n)
	case schema.Type.Is(openapi3.TypeBoolean):
		v = values[0] == "true"
		if values[0] != "true" && values[0] != "false" {
			err = strconv.ErrSyntax
		}
	case schema.Type.Is(openapi3.TypeArray):
		list := make([]any, len(values))
		for i, s := range values {
			list[i] = s
		}
		v = list
	}
	if err != nil {
		return fieldErrors{{Field: p.Name, Detail: "cannot be read as what is expected", Expected: optional(expected(schema))}}
	}
	if err := schema.VisitJSON(v, openapi3.MultiErrors()); err != nil {
		return describe(p.Name, schema, err)
	}
	return nil
}

func (s *server) checkBody(w http.ResponseWriter, r *http.Request, op *operation) error {
	limit := op.maxBody
	if limit == 0 {
		limit = s.maxUpload
	}
	if len(op.body) == 0 {
		limit = 0
	}
	if r.ContentLength > limit {
		return &http.MaxBytesError{Limit: limit}
	}
	r.Body = http.MaxBytesReader(w, r.Body, limit)
	if len(op.body) == 0 {
		return nil
	}
	kind := contentType(r)
	schema, known := op.body[kind]
	if !known && r.ContentLength == 0 && kind == "" && (!op.bodyRequired || !op.takesJSON()) {
		return nil // an empty body needs no type
	}
	if !known {
		return &sandbox.Error{Code: codeMediaType, Message: fmt.Sprintf("the content type must be one of: %s", op.mediaTypes())}
	}
	if schema == nil {
		return nil // raw bytes
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime)) // a test's recorder can't
	raw, err := readAll(r)
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		return err
	}
	return checkJSON(r, op, schema, raw)
}

func (op *operation) takesJSON() bool { return op.body["application/json"] != nil }

func (op *operation) mediaTypes() string {
	var names []string
	for name := range op.body {
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

func readAll(r *http.Request) ([]byte, error) {
	var buf bytes.Buffer
	if n := r.ContentLength; n > 0 && n <= 1<<20 {
		buf.Grow(int(n) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(r.Body); err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return nil, err
		}
		return nil, sandbox.Wrap(err, sandbox.CodeInvalid, "the body could not be read to its end")
	}
	return buf.Bytes(), nil
}

// checkJSON validates raw and makes it r's body.
func checkJSON(r *http.Request, op *operation, schema *openapi3.Schema, raw []byte) error {
	body := &buffered{raw: raw}
	body.Reset(raw)
	r.Body = body
	if len(bytes.TrimSpace(raw)) == 0 {
		if op.bodyRequired {
			return sandbox.Invalid("body", "a JSON object is needed")
		}
		body.Reset(nil)
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	var value any
	if err := dec.Decode(&value); err != nil {
		return sandbox.Invalid("body", "not valid JSON: %s", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return sandbox.Invalid("body", "something follows the JSON value")
	}
	if err := schema.VisitJSON(value, openapi3.VisitAsRequest(), openapi3.MultiErrors()); err != nil {
		return bounded(describe("body", schema, err))
	}
	return nil
}

// describe turns a validator's error into field errors.
func describe(name string, declared *openapi3.Schema, err error) fieldErrors {
	var all openapi3.MultiError
	if errors.As(err, &all) {
		var found fieldErrors
		for _, e := range all {
			found = append(found, describe(name, declared, e)...)
		}
		return found
	}
	f := types.FieldError{Field: name, Detail: "wrong value"}
	schema := declared
	var se *openapi3.SchemaError
	if errors.As(err, &se) {
		if at := se.JSONPointer(); len(at) > 0 {
			if f.Field = strings.Join(at, "."); name != "body" {
				f.Field = name + "." + f.Field
			}
		}
		if m := unsupportedProperty.FindStringSubmatch(se.Reason); m != nil {
			f.Field = strings.TrimPrefix(strings.TrimPrefix(f.Field, "body")+"."+m[1], ".")
			f.Detail, schema = "there is no such field", nil
		} else {
			f.Detail, schema = clip(se.Reason), se.Schema
		}
		f.Field = clip(f.Field)
	}
	if schema != nil {
		f.Expected = optional(expected(schema))
	}
	return fieldErrors{f}
}

// expected says in a few words what a schema takes.
func expected(s *openapi3.Schema) string {
	var parts []string
	if s.Type != nil {
		parts = append(parts, strings.Join(*s.Type, " or "))
	}
	if len(s.Enum) > 0 {
		parts = append(parts, fmt.Sprintf("one of %v", s.Enum))
	}
	if s.Pattern != "" {
		parts = append(parts, "matching "+s.Pattern)
	}
	if s.Min != nil {
		parts = append(parts, fmt.Sprintf("at least %v", *s.Min))
	}
	if s.Max != nil {
		parts = append(parts, fmt.Sprintf("at most %v", *s.Max))
	}
	if s.MaxLength != nil {
		parts = append(parts, fmt.Sprintf("at most %d characters", *s.MaxLength))
	}
	if s.MaxItems != nil {
		parts = append(parts, fmt.Sprintf("at most %d items", *s.MaxItems))
	}
	return strings.Join(parts, ", ")
}

func bounded(f fieldErrors) fieldErrors {
	if len(f) > maxFieldErrors {
		f = f[:maxFieldErrors]
	}
	return f
}

// clip bounds a text that a caller chose before it is given back.
func clip(s string) string {
	const most = 256
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
