package throttle

import (
	"cmp"
	"math"
	"slices"
	"time"

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
	// baseline rests on: half an hour, in which a machine has warmed up (longer where
	// a step takes minutes).
	baseBlocks, baseMost = 5, 30
	// lately is how many blocks in a row show that the attempt became faster, and
	// faster by which part at least: then it has a new baseline.
	lately     = 10
	fasterPart = 0.07
	// rising: in so many blocks or more it is looked whether they become slower, and
	// that the fastest third of them lies so many standard deviations of chance early
	// shows it. With fewer, lengths that come in stretches look the same.
	risingBlocks, risingZ = 9, 1.9
	// longBlock: a block this many times WindowS long needs no more than blockTimes
	// steps. With steps of ten minutes, five are most of an hour.
	longBlock = 5
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
	// lone is how many spikes that stand alone there were, loneSec what was clipped off
	// them, loneMost and loneNext the seconds of the longest two.
	lone                        int
	loneSec, loneMost, loneNext float64
	// worstN and worstSec are the time whose steps were the slowest.
	worstN, worstSec float64
	// mostFull and mostSec are the longest time's part of full and of sec, mostStep its
	// seconds a step.
	mostFull, mostSec, mostStep float64
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
		b.lone++
		b.loneSec += n * (stepS - v)
		b.loneNext = max(b.loneNext, min(b.loneMost, stepS))
		b.loneMost = max(b.loneMost, stepS)
	} else {
		b.full += n * stepS
	}
	c := v
	if !lone {
		c = stepS
	}
	if c > b.mostStep {
		b.mostStep, b.mostFull, b.mostSec = c, n*c, n*v
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
	many := b.n >= float64(c.Steps) || b.full >= longBlock*float64(c.WindowS)
	return b.times >= blockTimes && many && b.full >= float64(c.WindowS)
}

// many tells that there are so many lone spikes in it that they are what its steps
// are like: a loader that waits now and then, not a checkpoint.
func (b *block) many() bool { return b.lone >= loneMany }

// loneMany is how many in one block, most of which are a minute long.
const loneMany = 2

// all are the seconds of all its steps: with the lone spikes where there are many of
// them, of which one that is far longer than the others is something else.
func (b *block) all() float64 {
	if !b.many() {
		return b.full
	}
	return b.full + b.loneSec - max(0, b.loneMost-2*b.loneNext)
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

// unclipped is by how much the time of its steps was clipped, the longest one left out.
func (b *block) unclipped() float64 {
	if sec := b.sec - b.mostSec; sec > 0 {
		return (b.full - b.mostFull) / sec
	}
	return b.full / b.sec
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

// learned is a block that the baseline rests on.
type learned struct {
	from time.Time
	k    block
	step float64 // seconds a step
	// token is the seconds of a token, length the tokens of a step; zero where they are
	// not known.
	token, length float64
	pids          []int // on the GPU before it
}

// baseline is the attempt's own pace: the middle one of its first undisturbed
// blocks, or the fast ones of them where they became slower and did not come back.
// It is not moved by what comes later, so that a slow drift is seen; only an attempt
// that became clearly faster gets a new one.
type baseline struct {
	kept     []learned
	enough   bool    // there were baseBlocks of them
	variance float64 // middle one of the blocks'

	step, stepSD float64 // seconds a step, relative scatter of the blocks
	// calm and calmSD are the same without the slowest time of each block: a checkpoint
	// or an evaluation that nobody recognised is no scatter.
	calm, calmSD   float64
	token, tokenSD float64
	// even says that all steps have the same number of tokens, as far as is known.
	even bool
	// mean is the mean of the blocks: with regular checkpoints that nobody recognised.
	mean float64
	// whole is step with the lone spikes that there always were.
	whole float64

	late []learned // ring of the latest blocks
	next int
	env  environment
	pids map[int]bool
	// free is how many checkpoints and evaluations cost nothing, see freed.
	free [2]int
}

func (b *baseline) known() bool { return b.enough }

// learn takes an undisturbed block that began at from; pids were on the GPU before it.
func (b *baseline) learn(k *block, from time.Time, pids []int) {
	l := learned{from: from, k: *k, step: k.perStep()}
	if per := k.perToken(); per > 0 {
		l.token, l.length = per, l.step/per
	}
	if len(b.late) < lately {
		b.late = append(b.late, l)
	} else {
		b.late[b.next] = l
		b.next = (b.next + 1) % lately
	}
	if len(b.kept) < baseMost {
		l.pids = pids
		b.kept = append(b.kept, l)
		b.reckon()
	} else if b.even && len(b.late) == lately {
		// The scatter of a median of ten is under half of one block's.
		if now := median(figures(b.late, stepOf)); now < b.step*(1-max(fasterPart, 2*b.stepSD)) {
			first := append(slices.Clone(b.late[b.next:]), b.late[:b.next]...)
			*b = baseline{kept: first, env: b.env, pids: b.pids, free: b.free}
			b.reckon()
		}
	}
	b.env.blend(&k.env, baseMost)
	for _, pid := range pids {
		b.know(pid)
	}
}

// know remembers a process that was on the GPU.
func (b *baseline) know(pid int) {
	if b.pids == nil {
		b.pids = map[int]bool{}
	}
	if len(b.pids) < pidsMost {
		b.pids[pid] = true
	}
}

func stepOf(l learned) float64   { return l.step }
func calmOf(l learned) float64   { return l.k.calmPerStep() }
func wholeOf(l learned) float64  { return l.k.all() / l.k.n }
func tokenOf(l learned) float64  { return l.token }
func lengthOf(l learned) float64 { return l.length }

// figures are one figure of blocks, those of them that have it.
func figures(of []learned, figure func(learned) float64) []float64 {
	out := make([]float64, 0, len(of))
	for _, l := range of {
		if v := figure(l); v > 0 {
			out = append(out, v)
		}
	}
	return out
}

func (b *baseline) reckon() {
	b.enough = b.enough || len(b.kept) >= baseBlocks
	b.step, b.stepSD = level(figures(b.kept, stepOf))
	steps := figures(b.kept, stepOf)
	b.mean = b.step
	if _, _, ok := rising(steps); !ok {
		b.mean = max(b.step, meanOf(steps))
	}
	b.calm, b.calmSD = level(figures(b.kept, calmOf))
	single := make([]float64, len(b.kept))
	for i := range b.kept {
		single[i] = b.kept[i].k.variance()
	}
	b.variance = median(single)
	b.whole, _ = level(figures(b.kept, wholeOf))
	b.whole = max(b.whole, b.step)
	b.token, b.tokenSD, b.even = 0, 0, true
	if tokens := figures(b.kept, tokenOf); len(tokens) >= baseBlocks {
		b.token, b.tokenSD = level(tokens)
		lengths := figures(b.kept, lengthOf)
		b.even = relative(lengths, median(lengths)) <= evenTokens
	}
}

// prune takes the last blocks out that are slow against what was found to be the
// attempt's pace: they are of the slow state that was found, and so are not what was
// around them. It returns them, the earliest first. What is left is not weighed anew.
func (b *baseline) prune(cfg Config) []learned {
	n := len(b.kept)
	for n > 0 && b.judge(&b.kept[n-1].k, cfg).slow() {
		n--
	}
	if n == 0 || n == len(b.kept) {
		return nil
	}
	out := slices.Clone(b.kept[n:])
	b.kept = b.kept[:n]
	b.late, b.next = nil, 0
	b.env, b.pids = environment{}, nil
	for i := range b.kept {
		b.env.blend(&b.kept[i].k.env, baseMost)
		for _, pid := range b.kept[i].pids {
			b.know(pid)
		}
	}
	return out
}

// level is the pace that blocks show, and their relative scatter: the middle one,
// unless they only became slower. Then the slow ones are no scatter, and the fast
// ones are the attempt's pace.
func level(blocks []float64) (pace, sd float64) {
	pace = median(blocks)
	sd = relative(blocks, pace)
	if low, short, ok := rising(blocks); ok && low < pace {
		return low, short
	}
	return pace, sd
}

// rising tells whether blocks became slower, from what pace, and how they scatter from
// one to the next beside that. The fastest third of them lies early then.
func rising(blocks []float64) (from, sd float64, ok bool) {
	n := len(blocks)
	if n < risingBlocks {
		return 0, 0, false
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(blocks[a], blocks[b]) })
	k, at := n/3, 0.0
	for _, i := range order[:k] {
		at += float64(i) / float64(k)
	}
	chance := math.Sqrt(float64(n+1) * float64(n-k) / float64(12*k))
	if at > float64(n-1)/2-risingZ*chance {
		return 0, 0, false
	}
	steps := make([]float64, n-1)
	for i := range steps {
		steps[i] = blocks[i+1] - blocks[i]
	}
	mid := median(steps)
	for i := range steps {
		steps[i] = math.Abs(steps[i] - mid)
	}
	// The middle one of the fastest third lies one standard deviation below the middle
	// of all that scatters.
	low := blocks[order[(k-1)/2]]
	sd = 1.4826 / math.Sqrt2 * median(steps) / low * (1 + 4/float64(n))
	return low * (1 + sd), sd, true
}

// relative is the scatter of values as a part of mid. Of a few values the
// scatter is not known well, and taken for larger.
func relative(values []float64, mid float64) float64 {
	if mid <= 0 {
		return 0
	}
	return spread(values, mid) / mid * (1 + 4/float64(len(values)))
}

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
	// whole is the ratio with all of the time, where there are many long steps that
	// stand alone; else zero. It is told, and decides nothing.
	whole float64
	// byToken says that tokens were compared.
	byToken bool
}

func (j judgement) slow() bool { return j.known && j.ratio > j.limit && j.calm > j.limit }

// good tells that the pace is back. Between slow and good nothing changes.
func (j judgement) good() bool { return j.known && min(j.ratio, j.calm) < 1+(j.limit-1)/2 }

// judge compares a block with the baseline.
func (b *baseline) judge(k *block, cfg Config) judgement {
	if !b.known() || b.step <= 0 || k.n <= 0 {
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
	sd := max(b.calmSD, math.Sqrt(b.variance/float64(k.times)))
	j := judgement{known: true, ratio: k.perStep() / b.step, limit: limit(up, sigmas, sd)}
	if b.calm > 0 {
		j.calm = k.calmPerStep() / b.calm
	}
	if j.slow() && tokens.known && !tokens.slow() {
		return tokens // longer rows, not slower work
	}
	if k.many() {
		j.whole = k.all() / k.n / b.whole
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
		// What was clipped is in neither, and lone steps are nothing that tokens cost.
		return k.sec/j.ratio + k.all() - k.full
	}
	if j.whole > 0 {
		return k.n * b.whole
	}
	return k.n * b.mean
}

func meanOf(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(1, len(values)))
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
