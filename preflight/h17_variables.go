package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

type variablesSeen struct {
	// client is what the command's container client passes on.
	client clientFlags
}

func lookVariables(_ context.Context, v view) variablesSeen { return variablesSeen{readClient(v)} }

// judgeVariables is H17: variables left over from a search for an error, and those that
// newer libraries no longer read.
func judgeVariables(seen variablesSeen, f facts) Finding {
	env := trainerEnvOf(f, seen.client)
	var details, fixes, costs []string
	found := Finding{Status: Pass, Detail: "no variable that slows a training down"}
	for _, rule := range f.stack.Variables {
		value, where, known := env.get(rule.Name)
		switch {
		case !known:
			continue
		case rule.AbsentWith != nil:
			// A reminder, not worth a line of its own.
			if value == "" && matches(rule.AbsentWith, f.python.packages) {
				found.Evidence = append(found.Evidence, rule.Why)
			}
			continue
		case !rule.applies(value) || rule.With != nil && !matches(rule.With, f.python.packages):
			continue
		}
		details = append(details, fmt.Sprintf("%s=%s: %s", rule.Name, value, rule.Why))
		found.Evidence = append(found.Evidence, rule.Name+" is set in "+where)
		fix := rule.Fix
		if where != "the environment" {
			fix = fmt.Sprintf("take %s out of %s, or set it to nothing there", rule.Name, where)
		}
		fixes = append(fixes, fix)
		if rule.Cost != "" {
			costs = append(costs, rule.Cost)
		}
		if found.Status != Warn {
			found.Status = rule.Status
		}
	}
	if len(details) > 0 {
		found.Detail, found.Fix, found.Cost = strings.Join(details, "; "), strings.Join(fixes, "\n"), strings.Join(costs, " ")
		return found
	}
	if seen.client.envUnread != "" {
		found.Status, found.Detail = Info, seen.client.envUnread
	} else if f.clientRuns() && !f.image.known {
		found.Detail += " among those that the command sets; the image's own are not known"
	}
	return found
}

// applies tells whether a value has the effect that the rule is about.
func (r variableRule) applies(value string) bool {
	value = strings.ToLower(strings.TrimSpace(value))
	switch {
	case value == "":
		return false
	case len(r.Is) > 0:
		return slices.Contains(r.Is, value)
	}
	return !slices.Contains(r.Not, value)
}
