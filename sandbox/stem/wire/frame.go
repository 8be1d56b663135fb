package wire

import (
	"errors"
	"io"
)

const (
	// Version of the protocol. A peer refuses frames of another version.
	Version = 1
	// MaxFrame bounds a frame's version, kind and payload together, in bytes.
	MaxFrame = 4 << 20
	// MaxReply bounds what a stem may answer, in bytes.
	MaxReply = 1 << 20

	headerSize = 4
	prefixSize = 2
	readStep   = 64 << 10
)

var (
	// ErrMalformed: bytes that no correct peer sends.
	ErrMalformed = errors.New("malformed message")
	// ErrTooLarge: a frame above its bound.
	ErrTooLarge = errors.New("frame is too large")
	// ErrVersion: a frame of another version of the protocol.
	ErrVersion = errors.New("unknown protocol version")
)

// Kind says what a frame's payload is.
type Kind uint8

// Requests, and the two replies.
const (
	KindPing Kind = iota + 1
	KindStart
	KindSignal
	KindStdin
	KindList
	KindForget
	KindKillAll
	KindResize

	KindOK    Kind = 0x80
	KindError Kind = 0x81
)

// AppendFrame appends a whole frame to buf. It returns ErrTooLarge above MaxFrame.
func AppendFrame(buf []byte, kind Kind, payload []byte) ([]byte, error) {
	n := len(payload) + prefixSize
	if n > MaxFrame {
		return nil, ErrTooLarge
	}
	buf = append(buf, byte(n>>24), byte(n>>16), byte(n>>8), byte(n), Version, byte(kind))
	return append(buf, payload...), nil
}

// ReadFrame reads one frame of at most limit bytes (the length prefix not counted).
// io.EOF means that the peer closed before the frame; io.ErrUnexpectedEOF, within it.
// Memory grows with what has arrived, not with what the length promises.
func ReadFrame(r io.Reader, limit int) (Kind, []byte, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := uint64(head[0])<<24 | uint64(head[1])<<16 | uint64(head[2])<<8 | uint64(head[3])
	if n < prefixSize {
		return 0, nil, ErrMalformed
	}
	if n > uint64(limit) {
		return 0, nil, ErrTooLarge
	}
	body, err := readBody(r, int(n))
	if err != nil {
		return 0, nil, err
	}
	if body[0] != Version {
		return 0, nil, ErrVersion
	}
	return Kind(body[1]), body[prefixSize:], nil
}

func readBody(r io.Reader, n int) ([]byte, error) {
	body := make([]byte, 0, min(n, readStep))
	for len(body) < n {
		have := len(body)
		step := min(n-have, max(readStep, have))
		if cap(body) < have+step {
			grown := make([]byte, have, have+step)
			copy(grown, body)
			body = grown
		}
		body = body[:have+step]
		if _, err := io.ReadFull(r, body[have:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return body, nil
}
