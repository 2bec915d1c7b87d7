// Package runlog owns the run directory: where it lies, what is in it and how
// each file of it is written. It makes the folder, keeps run.json (replaced
// atomically), writes events.jsonl, progress.jsonl and the human run.log on the
// run's one clock, keeps the index of all runs, and finds runs again by ID, name
// or prefix.
//
// Nothing here can stop a run: once the folder stands, a full or broken disk
// costs lines of run.log (which can be made again from the raw output), is told
// as one event, and is written to again as soon as it takes bytes.
package runlog

// Names of the files in a run directory.
const (
	ManifestFile  = "run.json"
	LogFile       = "run.log"
	EventsFile    = "events.jsonl"
	ProgressFile  = "progress.jsonl"
	EnvReportFile = "env-report.json"
	AttemptsDir   = "attempts"
	reserveFile   = ".reserve"
	lastFile      = ".reserve-end"
	verdictFile   = ".reserve-verdict"
)

// RunsFolder is the name of the folder made in the working directory when the
// user names none.
const RunsFolder = "sparkrun-runs"

// appName is the name under which files of the user lie. It is not "sparkrun":
// another tool of that name keeps its own folders on many of these machines.
const appName = "sparkrun-train"
