package trainer

import "testing"

func TestTheTypedNamesTellTheVersion(t *testing.T) {
	t.Parallel()
	set, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, knob, want string }{
		{"deepspeed --module openrlhf.cli.train_sft --max_len 2048", "lora_rank", "lora_rank"},
		{"deepspeed --module openrlhf.cli.train_sft --data.max_len 2048", "lora_rank", "ds.lora.rank"},
		{"deepspeed --module openrlhf.cli.train_sft", "lora_rank", "ds.lora.rank"},
		{"swift sft --sft_type lora", "quant_bits", "quantization_bit"},
		{"swift sft --train_type lora", "quant_bits", "quant_bits"},
		{"swift sft --tuner_type lora", "quant_bits", "quant_bits"},
		{"trl sft --max_seq_length 2048", "dtype", "torch_dtype"},
		{"trl sft --dtype bfloat16", "seq_len", "max_length"},
		// Names of two ages: the first of them, by the knob's name, holds.
		{"trl sft --max_seq_length 2048 --dtype bfloat16", "seq_len", "max_length"},
	} {
		cmd, err := set.inJob(understand(t, set, t.TempDir(), c.name, "PATH="), nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := cmd.spelling(cmd.prof.Knobs[c.knob]); got != c.want {
			t.Errorf("%s: %s is written %s, not %s", c.name, c.knob, got, c.want)
		}
	}
}

func TestVersionRanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r            versionRange
		since, until string
		want         bool
	}{
		{versionRange{}, "1.0", "", true},
		{versionRange{since: "0.16"}, "", "0.20", true},
		{versionRange{since: "0.20"}, "", "0.20", false},
		{versionRange{until: "0.9"}, "0.16", "", false},
		{versionRange{since: "3.0", until: "4.1"}, "4.0", "", true},
	} {
		if got := c.r.meets(c.since, c.until); got != c.want {
			t.Errorf("%+v and %s to %s: %v", c.r, c.since, c.until, got)
		}
	}
}
