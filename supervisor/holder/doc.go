// Package holder owns the child of one attempt: its terminal or pipe, its
// process tree, the signals it gets, the raw log of what it prints and the
// record of how it ended.
//
// Three processes meet here. The supervisor calls Start, which runs
// "sparkrun __hold" (HoldMain) in a session of its own. The holder opens the
// PTY and runs "sparkrun __exec" (ExecMain), which prepares itself (cgroup, OOM
// score, signals, descriptors) and becomes the command. From then on the holder
// needs nobody: a supervisor that dies, hangs or is upgraded changes nothing
// for the command, and a new one finds it through the socket (Dial) and the
// files of the attempt directory:
//
//	output.log   every byte the command printed, as printed
//	output.idx   when which byte arrived (Index)
//	gaps.jsonl   what the disk refused (Gap); absent when nothing was lost
//	exit.json    how it ended (Exit); its existence is the end of the attempt
//
// Offsets are logical everywhere: bytes the command has printed, never file
// positions, which fall behind by the bytes of every gap before them.
//
// Between the terminal and the disk lies a ring of 8 MiB. The goroutine that
// reads the terminal never waits for a full disk, a socket or anybody else,
// since a command blocked in write(2) is a training that stands still.
package holder
