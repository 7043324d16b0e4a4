//! What every test begins with: all of this crate and of burn-amp, and the names of Burn and others that several tests use.

pub use crate::*;
pub use burn::{
    config::Config,
    grad_clipping::{GradientClipping, GradientClippingConfig},
    lr_scheduler::{
        linear::LinearLrSchedulerConfig,
        module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler, ModuleLrSchedulerConfig},
    },
    module::{Lora, Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId},
    nn::{
        BatchNorm, BatchNormConfig, DropoutConfig, EmbeddingConfig, LayerNorm, LayerNormConfig,
        Linear, LinearConfig, LinearLayout,
        attention::generate_autoregressive_mask,
        conv::Conv2dConfig,
        lstm::LstmState,
        transformer::{TransformerEncoderConfig, TransformerEncoderInput},
    },
    optim::{
        AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer,
        MultiGradientsParams, Optimizer, OptimizerRecord, RmsPropConfig, SgdConfig,
        decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    store::ModuleRecord,
    tensor::{
        Bool, Bytes, DType, Device, Distribution, FloatDType, Int, Tensor, TensorData,
        activation::{sigmoid, tanh},
    },
};
pub use burn_amp::{
    adaptive::{Guard, Outlier, SkipStep, ZClip},
    gradients::{
        AccumulationWindow, BorderFault, GradientStatus, ScaledGradients, UnscaledGradients,
        histogram, inspect, sum_of_devices,
    },
    optim::{
        CaptureInput, CapturedStep, Fused, FusedAdam, FusedAdamW, FusedSgd, ModuleOptim, Scaler,
    },
    pipeline::PipelinedOptimizer,
    schedule::{AdaptiveInterval, Evidence, LossScale, NearTop, Schedule},
    torch::{GradScaler, MasterWeights, to_full, to_half},
    *,
};
pub use burn_pack::Scalar;
pub use log::Level;
pub use serde_json::{Value, json};
pub use std::collections::{BTreeMap, BTreeSet};
pub use std::path::{Path, PathBuf};
pub use std::sync::atomic::{AtomicUsize, Ordering};
pub use std::sync::{Arc, Mutex};
pub use std::time::{Duration, Instant};
pub use std::{array::from_fn, fs, ops::Range};
