package trainer

import "testing"

// To declare a setting for a checkpoint is not to use it.
func TestHandsOn(t *testing.T) {
	t.Parallel()
	const flag = "p.add_argument('--resume_from_checkpoint')\nargs = p.parse_args()\n"
	for text, want := range map[string]bool{
		"":                                   false,
		flag + "t = Trainer(m)\nt.train()\n": false,
		flag + "t = Trainer(m)\nprint(args.resume_from_checkpoint)\nt.train()\n":                          false,
		flag + "t = Trainer(m)\nw = torch.load(args.resume_from_checkpoint)\nt.train()\n":                 false,
		flag + "t = Trainer(m)\n# t.train(resume_from_checkpoint=args.resume_from_checkpoint)\nt.train()": false,
		flag + "t = Trainer(m)\nt.train(resume_from_checkpoint=args.resume_from_checkpoint)\n":            true,
		flag + "t = SFTTrainer(m)\nt . train(\n    args.resume_from_checkpoint,\n)\n":                     true,
		flag + "last = args.resume_from_checkpoint\nt = Trainer(m)\nt.train(resume_from_checkpoint=last)": true,
		flag + "Trainer(m).fit(model, ckpt_path=args.resume_from_checkpoint)\n":                           true,
		flag + "model.train()\nfor b in d: pass\n":                                                        false,
		flag + "model.train()\naccelerator.load_state(args.resume_from_checkpoint)\n":                     true,
		flag + "model.train()\nload_checkpoint(args.out)\n":                                               false,
		flag + "s = torch.load(x)\nif args['resume_from_checkpoint']: pass\n":                             true,
		"cfg['resume_from_checkpoint']\ntorch.load(p)\n":                                                  true,
	} {
		if got := handsOn(text, []string{"resume_from_checkpoint"}); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
