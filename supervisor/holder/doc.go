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
//	guard.json   what the memory guard did and saw (guard.Report)
//	blackbox.csv its last minute of readings, if the command did not just exit 0
//	exit.json    how it ended (Exit); its existence is the end of the attempt
//
// Offsets are logical everywhere: bytes the command has printed, never file
// positions, which fall behind by the bytes of every gap before them.
//
// The attempt ends with the command: what it leaves behind is ended. Only with
// Spec.AwaitTree, for a command that is a client of its own descendants, does it
// go on until the last of them has ended.
//
// The memory guard (package guard) runs here too, on a thread of its own: a
// training whose supervisor is gone must not take the machine down either.
//
// Between the terminal and the disk lies a ring of 8 MiB. The goroutine that
// reads the terminal never waits for a full disk, a socket or anybody else,
// since a command blocked in write(2) is a training that stands still.
package holder
