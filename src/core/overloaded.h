// One lambda per alternative of a variant: std::visit(Overloaded{[](const Gemm&) {...}, ...}, op).
#pragma once

namespace barestep {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace barestep
