package postmortem

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

func TestReadAhead(t *testing.T) {
	t.Parallel()
	want := []byte(randomBytes(3*aheadSize + 12345))
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole":          func(r io.Reader) io.Reader { return r },
		"half":           iotest.HalfReader,
		"error and data": iotest.DataErrReader,
		"endings": func(r io.Reader) io.Reader {
			return io.MultiReader(iotest.OneByteReader(io.LimitReader(r, 100)), r)
		},
	} {
		a := readAhead(wrap(bytes.NewReader(want)))
		got, err := io.ReadAll(iotest.HalfReader(a))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(want), err)
		}
		if n, err := a.Read(make([]byte, 10)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the end %d, %v", name, n, err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	a := readAhead(&failing{bytes.NewReader(want), unix.EIO})
	defer a.Close()
	if got, err := io.ReadAll(a); !errors.Is(err, unix.EIO) || !bytes.Equal(got, want) {
		t.Errorf("an error: %d bytes, %v", len(got), err)
	}
}

// What nobody reads any more is not read on.
func TestReadAheadStops(t *testing.T) {
	t.Parallel()
	reads := make(chan struct{})
	a := readAhead(readerFunc(func(b []byte) (int, error) {
		reads <- struct{}{}
		return len(b), nil
	}))
	for range aheadBlocks {
		<-reads
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reads:
		t.Error("it reads on")
	default:
	}
	_ = a.Close() // a second time does no harm
}
