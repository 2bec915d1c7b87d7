package holder

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"time"
)

// indexRecordSize is the size of a record of output.idx: u64 logical offset,
// i64 CLOCK_REALTIME ns, i64 CLOCK_BOOTTIME ns, little-endian.
const indexRecordSize = 24

// indexBlock is how many records a reader keeps: about 4 KiB.
const indexBlock = 170

type indexRecord struct {
	off  int64
	real int64
	boot int64
}

func (r indexRecord) appendTo(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(r.off))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.real))
	return binary.LittleEndian.AppendUint64(b, uint64(r.boot))
}

func decodeIndexRecord(b []byte) indexRecord {
	return indexRecord{
		off:  int64(binary.LittleEndian.Uint64(b)),
		real: int64(binary.LittleEndian.Uint64(b[8:])),
		boot: int64(binary.LittleEndian.Uint64(b[16:])),
	}
}

// Index answers when a byte of the output arrived. It follows a file that
// grows, and keeps one block of it in memory however long the run is. It is
// safe for use by several goroutines.
type Index struct {
	mu    sync.Mutex
	f     *os.File
	block []indexRecord
	// next is the number of the first record after block.
	next int64
}

// OpenIndex opens output.idx of an attempt directory.
func OpenIndex(dir string) (*Index, error) {
	f, err := os.Open(filepath.Join(dir, idxName))
	if err != nil {
		return nil, fmt.Errorf("opening the index of the output: %w", err)
	}
	return &Index{f: f}, nil
}

// Close closes the file.
func (i *Index) Close() error { return i.f.Close() }

// BootAt returns CLOCK_BOOTTIME at which the byte at a logical offset arrived,
// at most 10 ms early. It is false for an offset before the first record or an
// index that is empty or unreadable. For a byte that has not been printed yet
// it is the time of the newest known chunk.
func (i *Index) BootAt(offset int64) (time.Duration, bool) {
	r, ok := i.find(offset)
	return time.Duration(r.boot), ok
}

// RealAt is BootAt with the wall clock of that moment, steps included.
func (i *Index) RealAt(offset int64) (time.Time, bool) {
	r, ok := i.find(offset)
	return time.Unix(0, r.real), ok
}

// find returns the last record whose offset is not above offset.
func (i *Index) find(offset int64) (indexRecord, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	st, err := i.f.Stat()
	if err != nil {
		return indexRecord{}, false
	}
	// A torn last record does not count yet.
	total := st.Size() / indexRecordSize
	// Followers ask in rising order: the answer is mostly in the block in
	// hand, and certainly so when a later record of it is above offset.
	if n := len(i.block); n > 0 && i.block[0].off <= offset {
		if i.block[n-1].off > offset || i.next == total {
			return searchBlock(i.block, offset)
		}
	}
	var readErr error
	var buf [indexRecordSize]byte
	above := sort.Search(int(total), func(k int) bool {
		if readErr != nil {
			return true
		}
		if _, readErr = i.f.ReadAt(buf[:], int64(k)*indexRecordSize); readErr != nil {
			return true
		}
		return decodeIndexRecord(buf[:]).off > offset
	})
	if readErr != nil || above == 0 {
		return indexRecord{}, false
	}
	if !i.load(int64(above)-1, total) {
		return indexRecord{}, false
	}
	return searchBlock(i.block, offset)
}

// load reads the block that starts at record first.
func (i *Index) load(first, total int64) bool {
	n := min(total-first, indexBlock)
	b := make([]byte, n*indexRecordSize)
	if _, err := i.f.ReadAt(b, first*indexRecordSize); err != nil {
		i.block = nil
		return false
	}
	i.block = i.block[:0]
	for ; len(b) > 0; b = b[indexRecordSize:] {
		i.block = append(i.block, decodeIndexRecord(b))
	}
	i.next = first + n
	return true
}

func searchBlock(block []indexRecord, offset int64) (indexRecord, bool) {
	k := sort.Search(len(block), func(k int) bool { return block[k].off > offset })
	if k == 0 {
		return indexRecord{}, false
	}
	return block[k-1], true
}
