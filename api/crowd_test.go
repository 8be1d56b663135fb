package api_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cairn/api"
)

// TestCrowd sends 10,000 requests at once: each is answered or turned away, and
// no more run together than may.
func TestCrowd(t *testing.T) {
	const most = 8
	h := newHarness(t, func(o *api.Options) {
		o.Limits = api.Limits{Requests: most, Queue: 1000, Wait: time.Minute}
		o.Logger = nil
	})
	var inside, peak, served, refused atomic.Int64
	gate := make(chan bool)
	h.svc.Err = func(string) error {
		n := inside.Add(1)
		for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
		}
		<-gate
		inside.Add(-1)
		return nil
	}
	var wg sync.WaitGroup
	for range 10_000 {
		wg.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/v1/sandboxes", nil)
			r.Header.Set("Authorization", "Bearer secret")
			w := httptest.NewRecorder()
			h.handler.ServeHTTP(w, r)
			switch w.Code {
			case 200:
				served.Add(1)
			case 503:
				refused.Add(1)
			default:
				t.Errorf("status %d", w.Code)
			}
		})
	}
	eventually(t, "what is too much is refused", func() bool { return refused.Load() == 10_000-most-1000 })
	close(gate)
	wg.Wait()
	if served.Load() != most+1000 || peak.Load() > most {
		t.Errorf("served %d, refused %d, at most %d at once", served.Load(), refused.Load(), peak.Load())
	}
}
