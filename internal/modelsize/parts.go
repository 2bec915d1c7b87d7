package modelsize

import "strings"

// part is what a tensor is to a quantiser.
type partKind int

const (
	otherPart partKind = iota
	linearPart
	expertPart
	embeddingPart
	headPart
)

// The words in the names of tensors, over the families of models.
var (
	embeddingWords = []string{"embed_tokens", "word_embeddings", "tok_embeddings", "token_embedding", ".wte.", ".wpe.", "embed_in", "embeddings.weight", "embed_positions"}
	headWords      = []string{"lm_head", "embed_out", "output_layer"}
	expertWords    = []string{".experts.", ".mlp.experts", "expert"}
	// A router is small and stays as it is.
	routerWords = []string{".router.", ".gate.weight", "router.weight", ".gate.wg."}
	normWords   = []string{"norm", "ln_"}
)

// kindOf tells what a tensor is by its name.
func kindOf(name string) partKind {
	dotted := "." + name
	has := func(words []string) bool {
		for _, w := range words {
			if strings.Contains(dotted, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has(headWords) || name == "output.weight":
		return headPart
	case has(embeddingWords):
		return embeddingPart
	case has(routerWords) || has(normWords) || strings.HasSuffix(name, "bias"):
		return otherPart
	case has(expertWords) && !strings.Contains(dotted, "shared_expert"):
		return expertPart
	}
	return linearPart
}

// add counts n parameters of a tensor.
func (p *Parts) add(t tensor, n int64) {
	switch kind := kindOf(t.name); {
	case kind == headPart:
		p.Head += n
	case kind == embeddingPart:
		p.Embeddings += n
	case kind == otherPart || t.dims < 2:
		p.Other += n
	default:
		p.Linears += n
		if kind == expertPart {
			p.Experts += n
		}
	}
}
