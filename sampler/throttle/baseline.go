package throttle

import (
	"math"

	"sparkrun/internal/sample"
)

// Steps are judged by blocks. One step says little: it may have a checkpoint, a
// log, a new epoch or a long row in it. The mean over a block scatters by as
// little as the job allows, and how much that is, its own blocks tell.

const (
	// blockTimes is how many printed step times a block needs at least: where one
	// line stands for ten steps, steps alone say little.
	blockTimes = 3
	// stepClip: of a step so many times slower than the baseline no more is counted
	// in a block, so that one evaluation nobody recognised is not a slow block.
	stepClip = 3
	// baseBlocks are needed before anything is judged. baseMost is how many the
	// baseline rests on: half an hour, in which a machine has warmed up.
	baseBlocks, baseMost = 5, 30
	// lately is how many blocks in a row show that the attempt became faster, and
	// faster by which part at least: then it has a new baseline.
	lately     = 10
	fasterPart = 0.07
	// evenTokens: tokens a step that scatter by less than this part are even, and
	// step times say it all.
	evenTokens = 0.03
	// tokenGrains: tokens are believed when so many of their last printed digit were
	// counted ("9.289e+04" counts by tens), an error of 2 %.
	tokenGrains = 50
)

// block is a stretch of steps.
type block struct {
	// times is how many step times it is made of, n the steps, sec their seconds with
	// spikes clipped, full with only lone spikes clipped, squares the sum of squares
	// of the single times a step.
	times      int
	n          float64
	sec, full  float64
	sum1, sum2 float64
	// worstN and worstSec are the time whose steps were the slowest.
	worstN, worstSec float64
	// tokens were counted in tokenSec seconds; grain is the smallest digit in which
	// they were printed.
	tokens, tokenSec, grain float64
	env                     environment
}

// take adds n steps of stepS seconds; clip is the most that counts of one, zero
// for no bound.
func (b *block) take(n, stepS, clip float64, lone bool) (counted float64) {
	v := stepS
	if clip > 0 {
		v = min(v, clip)
	}
	b.times++
	b.n += n
	b.sec += n * v
	if lone {
		b.full += n * v
	} else {
		b.full += n * stepS
	}
	b.sum1 += v
	b.sum2 += v * v
	if b.worstN == 0 || v > b.worstSec/b.worstN {
		b.worstN, b.worstSec = n, n*v
	}
	return n * v
}

// whole tells whether it is long enough to be judged.
func (b *block) whole(c SlowdownRule) bool {
	return b.times >= blockTimes && b.n >= float64(c.Steps) && b.full >= float64(c.WindowS)
}

// perStep is the seconds of a step; calm leaves the slowest time out.
func (b *block) perStep() float64 { return b.sec / b.n }

func (b *block) calmPerStep() float64 {
	if b.n <= b.worstN {
		return 0
	}
	return (b.sec - b.worstSec) / (b.n - b.worstN)
}

// perToken is the seconds of a token, zero where that is not known well enough.
func (b *block) perToken() float64 {
	if b.tokens <= 0 || b.tokenSec <= 0 || b.tokens < tokenGrains*b.grain {
		return 0
	}
	return b.tokenSec / b.tokens
}

// variance is the relative variance of the single times.
func (b *block) variance() float64 {
	k := float64(b.times)
	if k < 2 || b.sum1 <= 0 {
		return 0
	}
	mean := b.sum1 / k
	return max(0, (b.sum2-k*mean*mean)/(k-1)) / (mean * mean)
}

// baseline is the attempt's own pace: the middle one of its first undisturbed
// blocks. It is not moved by what comes later, so that a slow drift is seen;
// only an attempt that became clearly faster gets a new one.
type baseline struct {
	steps, tokens, lengths []float64
	variance               float64 // mean of the blocks'

	step, stepSD   float64 // seconds a step, relative scatter of the blocks
	token, tokenSD float64
	// even says that all steps have the same number of tokens, as far as is known.
	even bool

	// excused is a ratio up to which blocks are not slow, whatever the limit: the
	// attempt was as slow before and came back for no reason that is known.
	excused float64

	late []float64 // ring of the latest blocks' seconds a step
	next int
	env  environment
	pids map[int]bool
}

func (b *baseline) known() bool { return len(b.steps) >= baseBlocks }

// learn takes an undisturbed block.
func (b *baseline) learn(k *block) {
	if len(b.late) < lately {
		b.late = append(b.late, k.perStep())
	} else {
		b.late[b.next] = k.perStep()
		b.next = (b.next + 1) % lately
	}
	if len(b.steps) < baseMost {
		b.add(k)
		b.reckon()
	} else if b.even && len(b.late) == lately {
		// The scatter of a median of ten is under half of one block's.
		if now := median(b.late); now < b.step*(1-max(fasterPart, 2*b.stepSD)) {
			*b = baseline{steps: b.late, variance: b.variance, env: b.env, pids: b.pids}
			b.reckon()
		}
	}
	b.env.blend(&k.env, baseMost)
}

func (b *baseline) add(k *block) {
	b.steps = append(b.steps, k.perStep())
	b.variance += (k.variance() - b.variance) / float64(len(b.steps))
	if per := k.perToken(); per > 0 {
		b.tokens = append(b.tokens, per)
		b.lengths = append(b.lengths, k.perStep()/per)
	}
}

func (b *baseline) reckon() {
	b.step = median(b.steps)
	b.stepSD = relative(b.steps, b.step)
	b.token, b.tokenSD, b.even = 0, 0, true
	if len(b.tokens) >= baseBlocks {
		b.token = median(b.tokens)
		b.tokenSD = relative(b.tokens, b.token)
		length := median(b.lengths)
		b.even = relative(b.lengths, length) <= evenTokens
	}
}

// relative is the scatter of values as a part of mid. Of a few values the
// scatter is not known well, and taken for larger.
func relative(values []float64, mid float64) float64 {
	if mid <= 0 {
		return 0
	}
	return spread(values, mid) / mid * (1 + 4/float64(len(values)))
}

// excusedMore is by how much more than before an attempt must be slower to be slow
// again, see baseline.excused.
const excusedMore = 1.1

// judgement is what a block is against the baseline.
type judgement struct {
	// known is false where nothing can be said, such as with lengths that vary and
	// tokens that are not told.
	known bool
	// ratio is how many times longer a step, or a token, takes; calm the same
	// without the slowest time of the block.
	ratio, calm float64
	// limit is the ratio from which it is slow.
	limit float64
	// byToken says that tokens were compared.
	byToken bool
}

func (j judgement) slow() bool { return j.known && j.ratio > j.limit && j.calm > j.limit }

// good tells that the pace is back. Between slow and good nothing changes.
func (j judgement) good() bool { return j.known && j.ratio < 1+(j.limit-1)/2 }

// judge compares a block with the baseline.
func (b *baseline) judge(k *block, cfg Config) judgement {
	if !b.known() || b.step <= 0 {
		return judgement{}
	}
	up, sigmas := float64(cfg.Pace.Up), float64(cfg.Slowdown.Sigmas)
	perToken := k.perToken()
	var tokens judgement
	if b.token > 0 && perToken > 0 {
		ratio := perToken / b.token
		tokens = judgement{known: true, ratio: ratio, calm: ratio, limit: limit(up, sigmas, b.tokenSD), byToken: true}
	}
	if !b.even {
		return tokens
	}
	sd := max(b.stepSD, math.Sqrt(b.variance/float64(k.times)))
	j := judgement{known: true, ratio: k.perStep() / b.step, calm: k.calmPerStep() / b.step, limit: max(limit(up, sigmas, sd), b.excused)}
	if j.slow() && tokens.known && !tokens.slow() {
		return tokens // longer rows, not slower work
	}
	return j
}

// limit is the ratio from which a block is slow: beyond doubt by the part up, and
// by so many standard deviations of the blocks.
func limit(up, sigmas, sd float64) float64 { return 1 + max(up+sigmas/2*sd, sigmas*sd) }

// wantsMost is for how many seconds a block waits for its tokens.
const wantsMost = 3600

// wants tells that a block looks slow by its steps and must go on, since its
// tokens are printed too roughly to tell yet whether its rows are longer.
func (b *baseline) wants(k *block, cfg Config) bool {
	if b.token <= 0 || k.tokens <= 0 || k.perToken() > 0 || k.full >= wantsMost {
		return false
	}
	return !b.even || b.judge(k, cfg).slow()
}

// clip is the most that counts of one step.
func (b *baseline) clip() float64 {
	switch {
	case !b.known():
		return 0
	case b.even:
		return stepClip * b.step
	}
	return paceOutlier * b.step // lengths vary
}

// stepS is the baseline's seconds a step.
func (b *baseline) stepS() sample.Num {
	if !b.known() {
		return sample.Num{}
	}
	return sample.Known(b.step)
}

// tokensPerS is the baseline's rate.
func (b *baseline) tokensPerS() sample.Num {
	if !b.known() || b.token <= 0 {
		return sample.Num{}
	}
	return sample.Known(1 / b.token)
}

// expected is how long the block's work would have taken at the baseline.
func (b *baseline) expected(k *block, j judgement) float64 {
	if j.byToken {
		return k.full / j.ratio
	}
	return k.n * b.step
}

// grain returns the value of the smallest digit that a count is told by: the
// largest power of ten that divides it.
func grain(v float64) float64 {
	if v <= 0 || v > 1e15 || v != math.Trunc(v) {
		return 1
	}
	g := 1.0
	for n := int64(v); n%10 == 0; n /= 10 {
		g *= 10
	}
	return g
}
