//! What wasmtime makes of the contract, version 0.1: one module per world, one set of shared types.

pub(crate) mod types {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        inline: "
            package molt:host;
            world types { import molt:plugin/types@0.1.0; }
        ",
    });
    pub(crate) use molt::plugin::types::*;
}

pub(crate) mod environment {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        world: "environment-plugin",
        with: { "molt:plugin/types": crate::bindings::types::molt::plugin::types },
        exports: { default: async },
    });
    pub(crate) use exports::molt::plugin::environment::*;
}

pub(crate) mod reward {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        world: "reward-plugin",
        with: { "molt:plugin/types": crate::bindings::types::molt::plugin::types },
        exports: { default: async },
    });
    pub(crate) use exports::molt::plugin::reward::*;
}

pub(crate) mod estimator {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        world: "estimator-plugin",
        exports: { default: async },
    });
    pub(crate) use exports::molt::plugin::estimator::*;
}
