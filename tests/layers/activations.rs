//! The folder `activation` of burn-nn.

use burn::nn::activation::*;

use super::support::*;

layers! {
    activation: "Activation", AsItIs, |device| ActivationConfig::Gelu.init(device), [5, 6];
    celu: "Celu", AsItIs, |_| CeluConfig::new().init(), [5, 6];
    elu: "Elu", AsItIs, |_| EluConfig::new().init(), [5, 6];
    gelu: "Gelu", AsItIs, |_| Gelu::new(), [5, 6];
    gelu_approximate: "Gelu", AsItIs, |_| Gelu::new_approximate(), [5, 6];
    glu: "GLU", AsItIs, |_| GLU::new(1), [5, 6];
    hard_shrink: "HardShrink", AsItIs, |_| HardShrinkConfig::new().init(), [5, 6];
    hard_sigmoid: "HardSigmoid", AsItIs, |_| HardSigmoidConfig::new().init(), [5, 6];
    hard_swish: "HardSwish", AsItIs, |_| HardSwish::new(), [5, 6];
    hardtanh: "Hardtanh", AsItIs, |_| HardtanhConfig::new().init(), [5, 6];
    leaky_relu: "LeakyRelu", AsItIs, |_| LeakyReluConfig::new().init(), [5, 6];
    log_sigmoid: "LogSigmoid", AsItIs, |_| LogSigmoid::new(), [5, 6];
    mish: "Mish", AsItIs, |_| Mish::new(), [5, 6];
    prelu: "PRelu", AsItIs, |device| PReluConfig::new().init(device), [5, 6];
    relu: "Relu", AsItIs, |_| Relu::new(), [5, 6];
    relu6: "Relu6", AsItIs, |_| Relu6::new(), [5, 6];
    rrelu: "RRelu", AsItIs, |_| RReluConfig::new().init(), [5, 6];
    selu: "Selu", AsItIs, |_| Selu::new(), [5, 6];
    shrink: "Shrink", AsItIs, |_| ShrinkConfig::new().init(), [5, 6];
    sigmoid: "Sigmoid", AsItIs, |_| Sigmoid::new(), [5, 6];
    silu: "SiLU", AsItIs, |_| SiLU::new(), [5, 6];
    soft_shrink: "SoftShrink", AsItIs, |_| SoftShrinkConfig::new().init(), [5, 6];
    softplus: "Softplus", AsItIs, |_| SoftplusConfig::new().init(), [5, 6];
    softsign: "Softsign", AsItIs, |_| Softsign::new(), [5, 6];
    swiglu: "SwiGlu", AsItIs, |device| SwiGluConfig::new(6, 4).init(device), [5, 6];
    tanh: "Tanh", AsItIs, |_| Tanh::new(), [5, 6];
    tanhshrink: "Tanhshrink", AsItIs, |_| Tanhshrink::new(), [5, 6];
    threshold: "Threshold", AsItIs, |_| ThresholdConfig::new(0.1, 0.3).init(), [5, 6];
    thresholded_relu: "ThresholdedRelu", AsItIs, |_| ThresholdedReluConfig::new().init(), [5, 6],
        |layer, x, _| (layer.forward(x.clone() * 4.0) + x) * 0.1;
}
