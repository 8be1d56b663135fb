package api

import (
	_ "embed" // for the contract
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
)

// Spec is the contract, openapi.yaml.
//
//go:embed openapi.yaml
var Spec []byte

// class says how a request is bounded.
type class string

// The classes, as x-class has them.
const (
	classQuick  class = "quick"
	classWork   class = "work"
	classStream class = "stream"
)

// limit returns the time that a request of the class may take; 0 is no limit.
func (c class) limit() time.Duration {
	switch c {
	case classQuick:
		return 30 * time.Second
	case classWork:
		return 10 * time.Minute
	case classStream:
	}
	return 0
}

// defaultMaxBody bounds a body where the contract does not say otherwise, bytes.
const defaultMaxBody = 4 << 20

// operation is what the server needs to know of one operation.
type operation struct {
	id      string
	method  string
	path    string // with {parameters}; chi's patterns are the same
	class   class
	maxBody int64 // 0: the configuration's bound
	params  []*openapi3.Parameter
	query   map[string]bool // declared query parameters
	body    map[string]*openapi3.Schema
	// bodyRequired says that an empty body is an error.
	bodyRequired bool
}

// loadSpec reads the contract into operations by "METHOD /path".
func loadSpec(data []byte) (map[string]*operation, error) {
	doc, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("load the API contract: %w", err)
	}
	ops := make(map[string]*operation)
	for path, item := range doc.Paths.Map() {
		for method, o := range item.Operations() {
			op, err := newOperation(path, item, method, o)
			if err != nil {
				return nil, fmt.Errorf("API contract, %s %s: %w", method, path, err)
			}
			ops[method+" "+path] = op
		}
	}
	return ops, nil
}

func newOperation(path string, item *openapi3.PathItem, method string, o *openapi3.Operation) (*operation, error) {
	op := &operation{
		id: o.OperationID, method: method, path: path, maxBody: defaultMaxBody,
		query: make(map[string]bool),
		body:  make(map[string]*openapi3.Schema),
	}
	var c string
	if err := extension(o, "x-class", &c); err != nil {
		return nil, err
	}
	switch op.class = class(c); op.class {
	case classQuick, classWork, classStream:
	default:
		return nil, fmt.Errorf("unknown x-class %q", c)
	}
	if _, ok := o.Extensions["x-max-body-bytes"]; ok {
		if err := extension(o, "x-max-body-bytes", &op.maxBody); err != nil {
			return nil, err
		}
	}
	for _, list := range []openapi3.Parameters{item.Parameters, o.Parameters} {
		for _, p := range list {
			op.params = append(op.params, p.Value)
			if p.Value.In == openapi3.ParameterInQuery {
				op.query[p.Value.Name] = true
			}
		}
	}
	if o.RequestBody != nil {
		op.bodyRequired = o.RequestBody.Value.Required
		for name, media := range o.RequestBody.Value.Content {
			op.body[name] = nil
			if name == "application/json" {
				op.body[name] = media.Schema.Value
			}
		}
	}
	return op, nil
}

func extension(o *openapi3.Operation, name string, into any) error {
	data, err := json.Marshal(o.Extensions[name])
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// contentType returns the media type of r's body without parameters, "" for none.
func contentType(r *http.Request) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// negotiate returns the first of offers that an Accept header takes, the first of
// all when there is no header, and "" when it takes none. Weights only matter
// where they are 0; a concrete type goes before a wildcard.
func negotiate(accept string, offers ...string) string {
	if strings.TrimSpace(accept) == "" {
		return offers[0]
	}
	wild := ""
	for part := range strings.SplitSeq(accept, ",") {
		t, params, err := mime.ParseMediaType(part)
		if err != nil || params["q"] == "0" || params["q"] == "0.0" {
			continue
		}
		for _, offer := range offers {
			if t == offer {
				return offer
			}
			if wild == "" && (t == "*/*" || strings.HasSuffix(t, "/*") && strings.HasPrefix(offer, strings.TrimSuffix(t, "*"))) {
				wild = offer
			}
		}
	}
	return wild
}
