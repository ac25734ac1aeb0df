// Questions of the form "what if": everything that barestep says of a step that nobody ran, by one
// call. The page of `mlp_lab explore` asks it in the browser, where this code runs as WebAssembly.
#pragma once

#include <string>
#include <string_view>

namespace barestep {

/// Answers a question; both are JSON. The question:
///
///   {"card": {...},                     a machine card, as in its file
///    "machine": "t4",                   what commands call the card; "card.json" if absent
///    "ranks": 4,                        ranks or devices that share a step
///    "memory": "16GiB",                 of a device, on the CPU of all; may be absent
///    "options": {"dim": "8192", ...},   those of `mlp_lab predict`, as text; flags are "true"
///    "guess_ms": 3.5,                   what somebody expected of step_s; may be absent
///    "pinned": {...}}                   another question to compare with; may be absent
///
/// The answer:
///
///   headline        that it does not fit; or step_s, its speed compared with one rank, and why
///   setting         what is simulated, on which machine, with samples_per_s
///   command         the run as one would type it
///   predict         the same question to `mlp_lab predict`
///   step_s          seconds of a step, those of predicted_step()
///   samples_per_s   of all ranks
///   account         [{part, seconds}], which add up to step_s
///   speed_ups       [{ranks, step_s, samples_per_s, speed_up}], one rank first
///   serial_share    that Amdahl's law fits to them; null for one rank, and if no more is faster
///   memory          [{device, bytes, categories: [{category, bytes}]}] by the plan
///   shortage        why `memory`, or else what the card states, is too little; may be empty
///   messages        [{axis, exchange, ranks, count, bytes}] of a step of the first rank
///   explain         the program of the first rank, as --explain prints it
///   guess           {points, of, text} on `guess_ms`; null without
///   comparison      {text, rows: [{what, pinned, now, change}], svg} of `pinned`; null without
///   timeline_svg, account_svg, memory_svg, speed_up_svg
///
/// Beside most numbers stand texts for people: time, share, rate, factor, size. Throws Error with
/// the line that the trainers or `mlp_lab predict` would print, and Error(kBadData) for a question
/// of another form.
std::string explore(std::string_view question);

}  // namespace barestep
