// Package place owns the question where in a command the trainer stands: what
// words in front of it (env, nohup, bash -c, uv run, accelerate launch, docker
// run) do before it starts, which folder, environment, processes and machines it
// gets from them, and how changed words, more environment and more mounts are put
// back so that every other byte of the command stays.
//
// What it knows of those words is data, configs/trainers/_prefixes.yaml. It is
// careful in one direction: a word that it does not know, in front of a trainer,
// makes the place unsure, and then nothing of the command is changed.
package place
