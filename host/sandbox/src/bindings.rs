//! What wasmtime makes of the contract, version 0.2: one module per world, one set of shared types.

pub(crate) mod v0_1;

pub(crate) mod types {
    wasmtime::component::bindgen!({
        path: "../../wit/0.2.0",
        inline: "
            package molt:host;
            world types { import molt:plugin/types@0.2.0; }
        ",
    });
    pub(crate) use molt::plugin::types::*;
}

pub(crate) mod environment {
    wasmtime::component::bindgen!({
        path: "../../wit/0.2.0",
        world: "environment-plugin",
        with: { "molt:plugin/types": crate::bindings::types::molt::plugin::types },
        exports: { default: async },
    });
    pub(crate) use exports::molt::plugin::environment::*;
}

pub(crate) mod reward {
    wasmtime::component::bindgen!({
        path: "../../wit/0.2.0",
        world: "reward-plugin",
        with: { "molt:plugin/types": crate::bindings::types::molt::plugin::types },
        exports: { default: async },
    });
}

pub(crate) mod group_reward {
    wasmtime::component::bindgen!({
        path: "../../wit/0.2.0",
        world: "group-reward-plugin",
        with: { "molt:plugin/types": crate::bindings::types::molt::plugin::types },
        exports: { default: async },
    });
}

pub(crate) mod estimator {
    wasmtime::component::bindgen!({
        path: "../../wit/0.2.0",
        world: "estimator-plugin",
        with: { "molt:plugin/types": crate::bindings::types::molt::plugin::types },
        exports: { default: async },
        // A batch may have millions of numbers: they are copied once, into the plugin's memory.
        ownership: Borrowing { duplicate_if_necessary: false },
    });
    pub(crate) use exports::molt::plugin::estimator::*;
}

pub(crate) mod loss {
    wasmtime::component::bindgen!({
        path: "../../wit/0.2.0",
        world: "loss-plugin",
        exports: { default: async },
        // As those of an estimator.
        ownership: Borrowing { duplicate_if_necessary: false },
    });
    pub(crate) use exports::molt::plugin::loss::*;
}

pub(crate) mod interpreter {
    wasmtime::component::bindgen!({
        path: "../../wit/0.2.0",
        world: "interpreter-plugin",
        exports: { default: async },
    });
    pub(crate) use exports::molt::plugin::code::*;
}

/// The host's side of the import `model`.
pub(crate) mod model {
    wasmtime::component::bindgen!({
        path: "../../wit/0.2.0",
        inline: "
            package molt:host;
            world model { import molt:plugin/model@0.2.0; }
        ",
        with: { "molt:plugin/types": crate::bindings::types::molt::plugin::types },
        imports: { default: async | trappable },
    });
    pub(crate) use molt::plugin::model::*;
}

/// The host's side of the import `code`.
pub(crate) mod code {
    wasmtime::component::bindgen!({
        path: "../../wit/0.2.0",
        inline: "
            package molt:host;
            world code { import molt:plugin/code@0.2.0; }
        ",
        with: { "molt:plugin/code.session": crate::grant::CodeSession },
        imports: { default: async | trappable },
    });
    pub(crate) use molt::plugin::code::*;
}
