//! The folder `activation` of burn-nn.

use burn::nn::activation::{
    ActivationConfig, CeluConfig, EluConfig, GLU, Gelu, HardShrinkConfig, HardSigmoidConfig,
    HardSwish, HardtanhConfig, LeakyReluConfig, LogSigmoid, Mish, PReluConfig, RReluConfig, Relu,
    Relu6, Selu, ShrinkConfig, SiLU, Sigmoid, SoftShrinkConfig, SoftplusConfig, Softsign,
    SwiGluConfig, Tanh, Tanhshrink, ThresholdConfig, ThresholdedReluConfig,
};

use crate::support::layers;

layers! {
    activation: "Activation", AsItIs, |device| ActivationConfig::Gelu.init(device), [5, 6],
        |layer, x, _| layer.forward(x);
    celu: "Celu", AsItIs, |_| CeluConfig::new().init(), [5, 6], |layer, x, _| layer.forward(x);
    elu: "Elu", AsItIs, |_| EluConfig::new().init(), [5, 6], |layer, x, _| layer.forward(x);
    gelu: "Gelu", AsItIs, |_| Gelu::new(), [5, 6], |layer, x, _| layer.forward(x);
    gelu_approximate: "Gelu", AsItIs, |_| Gelu::new_approximate(), [5, 6],
        |layer, x, _| layer.forward(x);
    glu: "GLU", AsItIs, |_| GLU::new(1), [5, 6], |layer, x, _| layer.forward(x);
    hard_shrink: "HardShrink", AsItIs, |_| HardShrinkConfig::new().init(), [5, 6],
        |layer, x, _| layer.forward(x);
    hard_sigmoid: "HardSigmoid", AsItIs, |_| HardSigmoidConfig::new().init(), [5, 6],
        |layer, x, _| layer.forward(x);
    hard_swish: "HardSwish", AsItIs, |_| HardSwish::new(), [5, 6], |layer, x, _| layer.forward(x);
    hardtanh: "Hardtanh", AsItIs, |_| HardtanhConfig::new().init(), [5, 6],
        |layer, x, _| layer.forward(x);
    leaky_relu: "LeakyRelu", AsItIs, |_| LeakyReluConfig::new().init(), [5, 6],
        |layer, x, _| layer.forward(x);
    log_sigmoid: "LogSigmoid", AsItIs, |_| LogSigmoid::new(), [5, 6], |layer, x, _| layer.forward(x);
    mish: "Mish", AsItIs, |_| Mish::new(), [5, 6], |layer, x, _| layer.forward(x);
    prelu: "PRelu", AsItIs, |device| PReluConfig::new().init(device), [5, 6],
        |layer, x, _| layer.forward(x);
    relu: "Relu", AsItIs, |_| Relu::new(), [5, 6], |layer, x, _| layer.forward(x);
    relu6: "Relu6", AsItIs, |_| Relu6::new(), [5, 6], |layer, x, _| layer.forward(x);
    rrelu: "RRelu", AsItIs, |_| RReluConfig::new().init(), [5, 6], |layer, x, _| layer.forward(x);
    selu: "Selu", AsItIs, |_| Selu::new(), [5, 6], |layer, x, _| layer.forward(x);
    shrink: "Shrink", AsItIs, |_| ShrinkConfig::new().init(), [5, 6], |layer, x, _| layer.forward(x);
    sigmoid: "Sigmoid", AsItIs, |_| Sigmoid::new(), [5, 6], |layer, x, _| layer.forward(x);
    silu: "SiLU", AsItIs, |_| SiLU::new(), [5, 6], |layer, x, _| layer.forward(x);
    soft_shrink: "SoftShrink", AsItIs, |_| SoftShrinkConfig::new().init(), [5, 6],
        |layer, x, _| layer.forward(x);
    softplus: "Softplus", AsItIs, |_| SoftplusConfig::new().init(), [5, 6],
        |layer, x, _| layer.forward(x);
    softsign: "Softsign", AsItIs, |_| Softsign::new(), [5, 6], |layer, x, _| layer.forward(x);
    swiglu: "SwiGlu", AsItIs, |device| SwiGluConfig::new(6, 4).init(device), [5, 6],
        |layer, x, _| layer.forward(x);
    tanh: "Tanh", AsItIs, |_| Tanh::new(), [5, 6], |layer, x, _| layer.forward(x);
    tanhshrink: "Tanhshrink", AsItIs, |_| Tanhshrink::new(), [5, 6], |layer, x, _| layer.forward(x);
    threshold: "Threshold", AsItIs, |_| ThresholdConfig::new(0.1, 0.3).init(), [5, 6],
        |layer, x, _| layer.forward(x);
    thresholded_relu: "ThresholdedRelu", AsItIs, |_| ThresholdedReluConfig::new().init(), [5, 6],
        |layer, x, _| (layer.forward(x.clone() * 4.0) + x) * 0.1;
}
