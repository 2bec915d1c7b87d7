package ladder

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sparkrun/internal/job"
	"sparkrun/internal/shellread"
)

// settingBroke decides after a change that made the command fail in a new way. The
// settings before it died of memory, so going back there alone would only die again:
// the ladder stops, and says what lies between the two.
func (l Ladder) settingBroke(s Situation, before int) Decision {
	last := len(s.Past) - 1
	p, o := s.Past[last], s.Past[before]
	from, to := s.knobs(before), s.knobs(last)
	d := Decision{Act: "stop", Stop: StopSettingBroke, Knobs: from.Clone()}
	d.Why = fmt.Sprintf("after %s it failed in a way it did not before, so the change is the cause: %s; back one notch lies the death of attempt %d: %s",
		settings(from, to), cause(p), o.Attempt, cause(o))
	k, value, ok := between(from, to)
	if !ok {
		what := settings(from, to)
		if rung := lastOf(s.Past[before+1].Rungs); rung != "" {
			d.Advice = append(d.Advice, "without that rung: sparkrun --deny "+rung+" "+command(s.Job, s.Job.Knobs, s.Job.Argv))
		}
		d.Advice = append(d.Advice, "the command does not bear this change: "+what)
		return d
	}
	mid := from.Clone()
	set := mid[k]
	set.Value = value
	mid[k] = set
	what := fmt.Sprintf("%s %s, between %s and %s", words[k], value, to[k].Value, from[k].Value)
	if k == job.MicroBatch {
		if acc, ok := accumulated(from, value); ok {
			set := mid[job.Accumulation]
			set.Value = acc
			mid[job.Accumulation] = set
		}
	}
	if argv, ok := typed(s.Job, mid); ok {
		d.Advice = append(d.Advice, "try "+what+": sparkrun "+command(s.Job, mid, argv))
		return d
	}
	where := s.Job.Knobs[k].Where
	if where == "" {
		where = "the command's settings"
	}
	if acc := mid[job.Accumulation].Value; acc != from[job.Accumulation].Value {
		what += ", with accumulation " + acc
	}
	d.Advice = append(d.Advice, fmt.Sprintf("try %s (%s)", what, where))
	return d
}

func lastOf(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1]
}

// between returns a value of the setting that was cut, half way back.
func between(from, to job.Knobs) (k job.Knob, value string, ok bool) {
	for _, k := range []job.Knob{job.SeqLen, job.MicroBatch, job.EvalBatch} {
		a, err1 := strconv.ParseInt(from[k].Value, 10, 64)
		b, err2 := strconv.ParseInt(to[k].Value, 10, 64)
		if err1 != nil || err2 != nil || b >= a {
			continue
		}
		if k == job.MicroBatch {
			n, ok := divisorBetween(from, a, b)
			return k, strconv.FormatInt(n, 10), ok
		}
		n := b + (a-b)/2
		if k == job.SeqLen && n-n%64 > b {
			n -= n % 64 // lengths that kernels like
		}
		return k, strconv.FormatInt(n, 10), n > b && n < a
	}
	return "", "", false
}

// divisorBetween returns a micro-batch between two that leaves the effective batch
// as it is, the one nearest to the middle.
func divisorBetween(from job.Knobs, a, b int64) (int64, bool) {
	whole, err := strconv.ParseInt(from[job.GlobalBatch].Value, 10, 64)
	if err != nil {
		acc, err := strconv.ParseInt(from[job.Accumulation].Value, 10, 64)
		if err != nil || acc < 1 || acc > (1<<62)/a {
			return 0, false
		}
		whole = a * acc
	}
	mid := b + (a-b)/2
	for d := int64(0); mid-d > b || mid+d < a; d++ {
		for _, n := range []int64{mid - d, mid + d} {
			if n > b && n < a && whole%n == 0 {
				return n, true
			}
		}
	}
	return 0, false
}

// accumulated returns the accumulation that goes with another micro-batch; false
// where the command fixes the whole batch instead.
func accumulated(from job.Knobs, micro string) (string, bool) {
	if from[job.GlobalBatch].Value != "" {
		return "", false
	}
	m, err1 := strconv.ParseInt(from[job.MicroBatch].Value, 10, 64)
	acc, err2 := strconv.ParseInt(from[job.Accumulation].Value, 10, 64)
	n, err3 := strconv.ParseInt(micro, 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || n < 1 {
		return "", false
	}
	return strconv.FormatInt(m*acc/n, 10), true
}

// typed returns the command as a person would type it with other settings: those
// that stand in it as flags are replaced there. It is false where one stands
// elsewhere, in a config file or a script.
func typed(j job.Job, want job.Knobs) ([]string, bool) {
	argv := slices.Clone(j.Argv)
	for _, k := range changed(j.Knobs, want) {
		set := j.Knobs[k]
		switch set.Source {
		case job.FromUser: // told by --knob, see command
		case job.FromArgv:
			if !replaceFlag(argv[min(j.TrainerAt, len(argv)):], set.Where, set.Value, want[k].Value) {
				return nil, false
			}
		default:
			return nil, false
		}
	}
	return argv, true
}

// replaceFlag puts another value behind a flag: --flag VALUE, --flag=VALUE, key=VALUE.
func replaceFlag(argv []string, flag, from, to string) bool {
	if flag == "" {
		return false
	}
	done := false
	for i, w := range argv {
		switch {
		case w == flag && i+1 < len(argv) && argv[i+1] == from:
			argv[i+1] = to
			done = true
		case w == flag+"="+from:
			argv[i] = flag + "=" + to
			done = true
		}
	}
	return done
}

// command writes the end of a call of sparkrun: the knobs that were told, and the
// command. What is not a ladder's to turn stays as it was told: the output folder of
// an attempt is its own.
func command(j job.Job, want job.Knobs, argv []string) string {
	var b strings.Builder
	for _, k := range j.Knobs.Names() {
		if j.Knobs[k].Source != job.FromUser {
			continue
		}
		value := j.Knobs[k].Value
		if slices.Contains(turned, k) {
			value = want[k].Value
		}
		b.WriteString(shellread.Line([]string{"--knob", string(k) + "=" + value}) + " ")
	}
	return b.String() + "-- " + shellread.Line(argv)
}
