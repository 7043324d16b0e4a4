//! Averages of the weights in a module's record: one tensor for each, behind the model and under its paths.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{DType, Tensor},
};
use std::collections::BTreeSet;

use crate::{gradients::working_dtype, module_path::ModulePath, param_tensors::ParamTensors};

const PATH: [(&str, &str); 2] = [("burn_amp", "Struct:GradScaler"), ("ema", "Struct:Ema")];

/// What the names of their tensors start with.
pub(super) const PREFIX: &str = "burn_amp.ema.";

/// Shows the averages to a visitor, as parameters with ids of their own.
pub(super) fn visit<M: Module, V: ModuleVisitor>(
    model: &M,
    averages: &ParamTensors,
    visitor: &mut V,
) {
    for (name, container) in PATH {
        visitor.enter_module(name, container);
    }
    model.visit(&mut Show {
        visitor: &mut *visitor,
        averages,
    });
    for (name, container) in PATH.into_iter().rev() {
        visitor.exit_module(name, container);
    }
}

struct Show<'a, V> {
    visitor: &'a mut V,
    averages: &'a ParamTensors,
}

impl<V: ModuleVisitor> ModuleVisitor for Show<'_, V> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.visitor.enter_module(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.visitor.exit_module(name, container_type);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(average) = self.averages.get::<D>(param.id, &param.device().inner()) {
            let average = Param::initialized(ParamId::new(), average);
            self.visitor.visit_float(&average);
        }
    }
}

/// The averages that a mapper has, by the ids of the model's parameters, and the paths of these parameters.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    pub(super) averages: ParamTensors,
    pub(super) paths: BTreeSet<String>,
}

/// Asks a mapper for averages: those of the parameters at `wanted` paths, or, to see which there are, those of all.
pub(super) fn load<M: Module, T: ModuleMapper>(
    model: &M,
    wanted: Option<&BTreeSet<String>>,
    mapper: &mut T,
) -> Loaded {
    for (name, container) in PATH {
        mapper.enter_module(name, container);
    }
    let mut ask = Ask {
        mapper: &mut *mapper,
        wanted,
        path: ModulePath::default(),
        loaded: Loaded::default(),
    };
    model.visit(&mut ask);
    let loaded = ask.loaded;
    for (name, container) in PATH.into_iter().rev() {
        mapper.exit_module(name, container);
    }
    loaded
}

struct Ask<'a, T> {
    mapper: &'a mut T,
    wanted: Option<&'a BTreeSet<String>>,
    path: ModulePath,
    loaded: Loaded,
}

impl<T: ModuleMapper> ModuleVisitor for Ask<'_, T> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.enter(name);
        self.mapper.enter_module(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.mapper.exit_module(name, container_type);
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join();
        if self.wanted.is_some_and(|wanted| !wanted.contains(&path)) {
            return;
        }
        let value = param.base();
        let (shape, dtype) = (value.shape(), DType::from(working_dtype(value.dtype())));
        let blank_shape = shape.clone();
        let blank = Param::uninitialized(
            ParamId::new(),
            move |device, _| Tensor::<D>::zeros(blank_shape, (device, dtype)),
            value.device().inner(),
            false,
            shape,
        );
        let answer = self.mapper.map_float(blank);
        // What the mapper has nothing for, it leaves alone.
        if answer.is_initialized() {
            self.loaded.averages.insert(param.id, answer.into_value());
            self.loaded.paths.insert(path);
        }
    }
}
