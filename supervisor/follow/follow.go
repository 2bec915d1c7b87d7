// Package follow owns the readers of an attempt's raw log. The terminal, run.log
// and whoever looks at lines each read attempts/N/output.log from an offset of
// their own, so that a slow or dead one holds up neither the command nor the
// others.
//
//	Reader    the bytes from a logical offset on: file, gaps, the holder's memory
//	Splitter  bytes to lines, with the time each line was printed
//	Clean     a line without what would move a cursor
//	Folder    a progress bar's many states to one line per visible step
//	Screen    the one writer to our own terminal
//
// Offsets are logical everywhere: bytes the command has printed. A position in
// output.log is less than that by the bytes of every gap before it.
package follow

// Names of the files of an attempt that readers look at.
const (
	outputName = "output.log"
	gapsName   = "gaps.jsonl"
)
