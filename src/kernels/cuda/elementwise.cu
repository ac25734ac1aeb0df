#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/reductions.cuh"

namespace barestep {

cudaError_t Launcher::operator()(const BiasActivation& op) const {
  return with_activation(op.activation, [&]<class Formula>(Formula) {
    if (op.bias && op.values.dtype != DType::kF32) {
      return with_number(op.values.dtype, [&]<class Number>(Number) {
        return each_of(op.values.rows, op.values.cols,
                       BiasActivationElement<Formula, Number>{
                           {addresses.at<Number>(op.values), at<Number>(op.pre_activation)},
                           addresses.at<Number>(*op.bias),
                           op.values.cols});
      });
    }
    if (op.bias) {
      const BiasActivationElement<Formula> element{
          {addresses.at(op.values), at(op.pre_activation)}, addresses.at(*op.bias), op.values.cols};
      constexpr int kCount = kPackOf<float>;
      const bool packs =
          op.values.cols % kCount == 0 &&
          are_aligned(element.activation.values, element.activation.pre_activation, element.bias);
      return packs ? each_of(op.values.rows, op.values.cols / kCount,
                             BiasActivationPack<kCount, Formula>{element})
                   : each_of(op.values.rows, op.values.cols, element);
    }
    return with_number(op.values.dtype, [&]<class Number>(Number) {
      Number* const values = addresses.at<Number>(op.values);
      Number* const kept = at<Number>(op.pre_activation);
      return each<kPackOf<Number>>(op.values.size(), are_aligned(values, kept),
                                   ActivateElement<Formula, Number>{{values, kept}});
    });
  });
}

cudaError_t Launcher::operator()(const ActivationGrad& op) const {
  return with_activation(op.activation, [&]<class Formula>(Formula) {
    if (op.sums) {
      const ActivationGradElement<Formula, float> element(op, addresses);
      constexpr int kCount = kPackOf<float>;
      const bool aligned = op.grad.cols % kCount == 0 && are_aligned(element.grad, element.from);
      return start(queue, column_tiles(op.grad.cols, kCount), dim3(kSumThreads, kSumRows),
                   aligned ? activation_grad_sums<kCount, true, Formula>
                           : activation_grad_sums<kCount, false, Formula>,
                   addresses.at(*op.sums), element, op.grad.rows, op.grad.cols, op.beta);
    }
    return with_number(op.grad.dtype, [&]<class Number>(Number) {
      const ActivationGradElement<Formula, Number> element(op, addresses);
      return each<kPackOf<Number>>(op.grad.size(), are_aligned(element.grad, element.from),
                                   element);
    });
  });
}

cudaError_t Launcher::operator()(const Dropout& op) const {
  return with_number(op.values.dtype, [&]<class Number>(Number) {
    const DropoutElement<Number> element(op, addresses);
    constexpr int kCount = kPackOf<Number>;
    const bool packs = op.values.cols % (4 * kCount) == 0 && are_aligned(element.values);
    return packs ? each_of(op.values.rows, element.groups / kCount,
                           DropoutPack<kCount, Number>{element})
                 : each_of(op.values.rows, element.groups, element);
  });
}

cudaError_t Launcher::operator()(const Cast& op) const {
  return with_cast(op, addresses, [&]<class To, class From>(const CastElement<To, From>& cast) {
    return each<kPackOf<To, From>>(op.to.size(), are_aligned(cast.to, cast.from), cast);
  });
}

cudaError_t Launcher::operator()(const Fill& op) const {
  if (op.out.dtype == DType::kF32) {
    float* const out = addresses.at(op.out);
    return each<kPackOf<float>>(op.out.size(), are_aligned(out), FillElement{out, op.value});
  }
  BARESTEP_REQUIRE(op.value == 0, "only floats have a value");
  if (queue.follows_kernel != nullptr) *queue.follows_kernel = false;
  return cudaMemsetAsync(addresses.at<std::byte>(op.out), 0,
                         static_cast<std::size_t>(op.out.bytes()), queue.stream);
}

cudaError_t Launcher::operator()(const Add& op) const {
  return with_number(op.b.dtype, [&]<class Number>(Number) {
    const AddElement<Number> element(op, addresses);
    return each<kPackOf<float, Number>>(op.out.size(),
                                        are_aligned(element.out, element.a, element.b), element);
  });
}

}  // namespace barestep
