package preflight

import "slices"

// Redacted is the report with text applied to everything in it that a person or a program
// reads: command lines of other people's processes hold passwords. The commands of Repairs
// stay as they are, since they are run.
func (r Report) Redacted(text func(string) string) Report {
	r.Findings, r.Host = redacted(r.Findings, text), redacted(r.Host, text)
	if r.Plan != nil {
		p := *r.Plan
		p.Model.Name, p.Model.From, p.Model.Path = text(p.Model.Name), text(p.Model.From), text(p.Model.Path)
		p.Estimate.Assumed, p.Estimate.Notes = each(p.Estimate.Assumed, text), each(p.Estimate.Notes, text)
		if p.Start != nil {
			s := *p.Start
			s.Words, s.Line, s.Changes = text(s.Words), text(s.Line), each(s.Changes, text)
			p.Start = &s
		}
		r.Plan = &p
	}
	return r
}

func redacted(list []Finding, text func(string) string) []Finding {
	list = slices.Clone(list)
	for i := range list {
		f := &list[i]
		f.Detail, f.Line, f.Fix, f.Cost = text(f.Detail), text(f.Line), text(f.Fix), text(f.Cost)
		f.Evidence = each(f.Evidence, text)
		f.Repairs = slices.Clone(f.Repairs)
		for n := range f.Repairs {
			f.Repairs[n].Effect = text(f.Repairs[n].Effect)
		}
	}
	return list
}

// each keeps nil and empty apart: they are written differently.
func each(list []string, text func(string) string) []string {
	list = slices.Clone(list)
	for i, s := range list {
		list[i] = text(s)
	}
	return list
}
